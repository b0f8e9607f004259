// Exact search by lookup tables: bounds in bytes choose the rows, the float tables score them.
#include "search.hpp"

#include <cmath>
#include <vector>

#include "heap.hpp"

namespace gkmeans {

constexpr int kStride = 64;  // blocks that are bounded by one limit
static_assert(kStride % kAbreast == 0);
constexpr std::int64_t kNever = INT64_MAX;
constexpr std::int64_t kSettled = 256;         // blocks that are met before halved tables are tried
constexpr std::int64_t kSpared = 128;          // rows of which halved tables may leave one
constexpr std::int64_t kCacheBytes = 1 << 17;  // of codes that all questions meet before the next
constexpr int kMostBound = 65535;
constexpr int kNarrow = 24;     // tables whose sums of bytes say enough
constexpr double kReach = 250;  // steps from the least score to the worst that is wanted
constexpr int kCoarse = 180;    // steps that are too few for it
constexpr int kCoarser = 90;    // and for the few rows of a list
constexpr int kMany = 16;       // rows of a block that are scored together with those between them
constexpr int kTogether = 8;    // other rows that are scored side by side
constexpr int kAhead = 16;      // blocks that are fetched before they are copied from
constexpr int kFewBlocks = 4;   // of which one holds a row: then only such are fetched

// What a row's code adds, whose byte of a dictionary lies at `line`; `odd` where it is the second of a line.
// Tables of nibbles and bytes have an entry for each (Kp = 16 or 256); shorts are checked, since files may be
// damaged.
template <int bits>
static inline float entry(const std::uint8_t* line, bool odd, const float* table, int Kp) {
    if constexpr (bits == 8) {
        return table[*line];
    } else if constexpr (bits == 4) {
        return table[odd ? *line >> 4 : *line & 15];
    } else {
        const int code = *line | line[kBlock] << 8;
        return table[code < Kp ? code : 0];
    }
}

// Adds a row's entries, for n rows whose first line lies at `line(i)`.
template <int bits, typename Line>
static inline void add_entries(const Shelf& shelf, const float* tables, int n, Line line, float* out) {
    for (int c = 0; c < shelf.lines.C; ++c, tables += shelf.Kp) {
        const int at = (bits == 4 ? c / 2 : bits == 8 ? c : 2 * c) * kBlock;
        for (int i = 0; i < n; ++i) out[i] += entry<bits>(line(i) + at, c % 2, tables, shelf.Kp);
    }
}

// Scores of n rows: number row(i) of all, whose first line lies at line(i). The sums are in the same order
// however many rows there are, and side by side.
template <typename Row, typename Line>
static void score(const Shelf& shelf, const Question& question, int n, Row row, Line line, float* out) {
    const Lines& lines = shelf.lines;
    for (int i = 0; i < n; ++i) out[i] = question.bias;
    if (lines.bits == 8) {
        add_entries<8>(shelf, question.tables, n, line, out);
    } else if (lines.bits == 4) {
        add_entries<4>(shelf, question.tables, n, line, out);
    } else {
        add_entries<16>(shelf, question.tables, n, line, out);
    }
    const std::size_t norm = static_cast<std::size_t>(lines.count() - 1) * kBlock;
    for (int i = 0; i < n; ++i) {
        if (shelf.norms) {
            out[i] += shelf.norms[row(i)];
        } else if (shelf.levels) {
            out[i] += shelf.levels[line(i)[norm]];
        }
        if (out[i] < question.floor) out[i] = question.floor;
    }
}

// A question's tables in bytes. A sum of them, times the step, plus the least possible score, is at most the
// score.
struct Bounds {
    std::vector<std::uint8_t> tables;
    std::vector<double> leasts;  // of each table
    double least = 0, step = 1, slack = 0, size = 0, widest = 0;
    bool narrow = false, halved = false;

    // The score that is left over the bias and the least that the tables give.
    double reach(float worst, float bias) const { return static_cast<double>(worst) + slack - bias - least; }

    // The greatest bound that a row with this score can have, or -1, or kMostBound where no bound says
    // anything.
    int limit(float worst, float bias) const {
        const double bound = reach(worst, bias) / step + 1;
        if (!std::isfinite(bound) || bound >= (narrow ? 255 : kMostBound)) return kMostBound;
        return bound < 1 ? -1 : static_cast<int>(bound);
    }
};

// What all bounds of a question have in common.
static Bounds measured(const Kernels& kernels, const Shelf& shelf, const Question& question) {
    const int C = shelf.lines.C, Kp = shelf.Kp, tables = C + (shelf.levels != nullptr);
    Bounds out;
    out.leasts.resize(tables);
    out.size = question.most;
    for (int t = 0; t < tables; ++t) {
        float low, high;
        kernels.extremes(t < C ? Kp : 256, t < C ? question.tables + t * Kp : shelf.levels, &low, &high);
        const double least = out.leasts[t] = low, most = high;
        if (most - least > out.widest) out.widest = most - least;
        out.size += std::fmax(std::fabs(least), std::fabs(most));
        out.least += least;
    }
    // Float sums of `tables` terms may fall short of the true ones by this much. The levels bound the norms,
    // too.
    out.slack = (tables + 2) * std::ldexp(out.size, -23);
    out.narrow = tables <= kNarrow;
    return out;
}

// Byte tables for rows that score at most `worst`. Few tables are added up in bytes, in steps that reach just
// that far.
static void bound(const Kernels& kernels, const Shelf& shelf, const Question& question, float worst,
                  Bounds& out) {
    const int C = shelf.lines.C, Kp = shelf.Kp, tables = static_cast<int>(out.leasts.size());
    const double step = out.narrow ? out.reach(worst, question.bias) / kReach : out.widest / 255;
    out.step = step > 0 && std::isfinite(step) ? step : 1;
    const int pairs = shelf.lines.bits == 4 ? C + C % 2 : C;
    out.tables.assign(static_cast<std::size_t>(pairs) * Kp + (shelf.levels ? 256 : 0), 0);
    const float steps = static_cast<float>(1 / out.step);
    if (!std::isfinite(out.size) || !std::isfinite(steps)) return;  // bounds of 0: every row is scored
    for (int t = 0; t < tables; ++t) {
        const bool code = t < C;
        kernels.round_down(code ? Kp : 256, code ? question.tables + t * Kp : shelf.levels,
                           static_cast<float>(out.leasts[t]), steps,
                           out.tables.data() + static_cast<std::size_t>(code ? t : pairs) * Kp);
    }
    for (int t = shelf.lines.bits == 8 ? 0 : C; t < tables; ++t) {
        kernels.arrange(t == C, out.halved,
                        out.tables.data() + static_cast<std::size_t>(t < C ? t : pairs) * Kp);
    }
}

// One question's way through the blocks; Sink has worst() and take(score, id).
template <typename Sink>
struct Walk {
    const Kernels& kernels;
    const Shelf& shelf;
    Question question;
    Sink sink;
    Bounds bounds;
    bool bounded;
    int coarse = kCoarse;
    std::int64_t met = 0;                                // blocks so far
    std::int64_t trial = kSettled, since = 0, left = 0;  // halved tables: from where, and the rows they left
    int stride = 1;  // grows with them: the first rows of all give the limit that the next are held to

    Walk(const Kernels& kernels, const Shelf& shelf, const Question& question, const Sink& sink)
        : kernels(kernels), shelf(shelf), question(question), sink(sink) {
        bounded = kernels.candidates && shelf.lines.bits <= 8 && shelf.lines.C < 256;
        if (shelf.lines.bits != 8 || !kernels.halving) trial = kNever;
    }

    // Rows from `first` to `last`, which need not fill their blocks.
    void run(std::int64_t first, std::int64_t last) {
        std::uint64_t words[kStride];
        const std::int64_t end = (last + kBlock - 1) / kBlock;
        for (std::int64_t b = first / kBlock; b < end;) {
            const int n = static_cast<int>(end - b < stride ? end - b : stride);
            for (int i = 0; i < n; ++i) words[i] = shelf.keep[b + i];
            if (b * kBlock < first) words[0] &= ~std::uint64_t{0} << first % kBlock;
            if (b + n == end && last % kBlock) words[n - 1] &= ~(~std::uint64_t{0} << last % kBlock);
            if (!meet(b, n, 1, kAbreast, words)) return;
            b += n;
            met += n;
            if (stride < kStride && met >= 4 * stride) stride *= 2;
        }
    }

    // All rows, from the four quarters at once: memory is read faster in several streams than in one.
    void run() {
        std::uint64_t words[kStride];
        const std::int64_t quarter = shelf.blocks / kAbreast;
        for (std::int64_t b = 0; b < quarter;) {
            if (stride > kStride / kAbreast) stride = kStride / kAbreast;
            const int n = static_cast<int>(quarter - b < stride ? quarter - b : stride);
            for (int i = 0; i < n; ++i) {
                for (int j = 0; j < kAbreast; ++j) words[kAbreast * i + j] = shelf.keep[b + i + j * quarter];
            }
            if (!meet(b, kAbreast * n, quarter, 1, words)) return;
            b += n;
            met += kAbreast * n;
            stride *= 2;
        }
        run(kAbreast * quarter * kBlock, shelf.blocks * kBlock);
    }

    // The rows that `words` keep of n blocks, of which kAbreast * i + j is b + next * i + apart * j; false
    // where nothing can be better.
    bool meet(std::int64_t b, int n, std::int64_t apart, std::int64_t next, std::uint64_t* words) {
        const int limit = limit_now();
        if (limit < 0) return false;  // scores are at the least already
        if (limit < kMostBound) {
            const std::int64_t bytes = static_cast<std::int64_t>(shelf.lines.bytes());
            if (!kernels.candidates(shelf.lines, n, shelf.codes + b * bytes,
                                    static_cast<std::size_t>(apart * bytes),
                                    static_cast<std::size_t>(next * bytes), bounds.tables.data(),
                                    Bound{limit, bounds.narrow, bounds.halved}, words))
                return true;
            if (bounds.halved) {
                for (int i = 0; i < n; ++i) left += __builtin_popcountll(words[i]);
            }
        }
        std::int64_t rows[kTogether];
        int count = 0;
        for (int i = 0; i < n; ++i) {
            if (!words[i]) continue;
            const std::int64_t block = b + i / kAbreast * next + i % kAbreast * apart;
            if (__builtin_popcountll(words[i]) > kMany) {
                take_block(block, words[i]);
                continue;
            }
            for (std::uint64_t word = words[i]; word; word &= word - 1) {
                rows[count++] = block * kBlock + __builtin_ctzll(word);
                if (count == kTogether) {
                    take_rows(rows, count);
                    count = 0;
                }
            }
        }
        take_rows(rows, count);
        return true;
    }

    // The bounds are made when the first limit is known, and again when it has come so near that finer steps
    // say more.
    int limit_now() {
        const float worst = sink.worst();
        if (!bounded || !(worst < kNone)) return kMostBound;
        const bool none = bounds.tables.empty(), turned = turns();
        int limit = none ? 0 : bounds.limit(worst, question.bias);
        if (none || turned || (bounds.narrow && limit > 0 && limit < coarse)) {
            if (none) bounds = measured(kernels, shelf, question);
            if (turned) bounds.halved = !bounds.halved;
            bound(kernels, shelf, question, worst, bounds);
            limit = bounds.limit(worst, question.bias);
        }
        return limit;
    }

    // Whether to take up halved tables, which cost half as much and leave more rows to be scored, or to leave
    // them: they are tried when the limit has settled, and again at twice the blocks after they left too
    // many.
    bool turns() {
        if (bounds.halved ? left <= kBlock + (met - since) * kBlock / kSpared : met < trial) return false;
        if (bounds.halved) trial = 2 * met;
        left = 0;
        since = met;
        return true;
    }

    const std::uint8_t* lines_of(std::int64_t row) const {
        return shelf.codes + row / kBlock * static_cast<std::int64_t>(shelf.lines.bytes()) + row % kBlock;
    }

    // Many rows of a block, with those between them: its lines are read from end to end.
    void take_block(std::int64_t b, std::uint64_t word) {
        float scores[kBlock];
        const std::uint8_t* block = lines_of(b * kBlock);
        // rows past the end have codes, but neither norms nor a bit
        score(
            shelf, question, kBlock - __builtin_clzll(word), [b](int i) { return b * kBlock + i; },
            [block](int i) { return block + i; }, scores);
        for (; word; word &= word - 1) {
            const int row = __builtin_ctzll(word);
            take(scores[row], b * kBlock + row);
        }
    }

    void take_rows(const std::int64_t* rows, int n) {
        float scores[kTogether];
        const std::uint8_t* lines[kTogether];
        for (int i = 0; i < n; ++i) lines[i] = lines_of(rows[i]);
        score(
            shelf, question, n, [rows](int i) { return rows[i]; }, [&lines](int i) { return lines[i]; },
            scores);
        for (int i = 0; i < n; ++i) take(scores[i], rows[i]);
    }

    void take(float score, std::int64_t row) {
        if (score <= sink.worst()) sink.take(score, shelf.ids ? shelf.ids[row] : shelf.first + row);
    }
};

void search(const Kernels& kernels, const Shelf& shelf, int n, const Question* questions, int k,
            float* scores, std::int64_t* ids) {
    std::vector<Walk<Heap>> walks;
    walks.reserve(n);
    for (int i = 0; i < n; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) * k;
        walks.emplace_back(kernels, shelf, questions[i], Heap{k, scores + at, ids + at});
    }
    if (n == 1) {
        walks[0].run();
        return;
    }
    // Several share what is in the cache.
    const std::int64_t bytes = static_cast<std::int64_t>(shelf.lines.bytes());
    const std::int64_t some = (kCacheBytes + bytes - 1) / bytes;
    for (std::int64_t b = 0; b < shelf.blocks; b += some) {
        const std::int64_t end = b + some < shelf.blocks ? b + some : shelf.blocks;
        for (auto& walk : walks) walk.run(b * kBlock, end * kBlock);
    }
}

struct List {
    float limit;
    std::int64_t room, count;
    float* scores;
    std::int64_t* ids;

    float worst() const { return limit; }
    void take(float s, std::int64_t id) {
        if (count < room) {
            scores[count] = s;
            ids[count] = id;
        }
        ++count;
    }
};

std::int64_t within(const Kernels& kernels, const Shelf& shelf, const Question& question, float limit,
                    std::int64_t room, float* scores, std::int64_t* ids) {
    Walk<List> walk(kernels, shelf, question, List{limit, room, 0, scores, ids});
    walk.run();
    return walk.sink.count;
}

// The lists of question i, nearest first.
template <typename Sink>
static void visit(const Visits& visits, int i, Walk<Sink>& walk) {
    const std::size_t at = static_cast<std::size_t>(i) * visits.m;
    walk.coarse = kCoarser;
    walk.trial = kNever;  // too few rows for limits to settle
    walk.question.most = 0;
    for (int j = 0; j < visits.m; ++j) {
        walk.question.most = std::fmax(walk.question.most, std::fabs(visits.biases[at + j]));
    }
    for (int j = 0; j < visits.m; ++j) {
        const std::int64_t* rows = visits.offsets + visits.lists[at + j];
        walk.question.bias = visits.biases[at + j];
        if (rows[0] < rows[1]) walk.run(rows[0], rows[1]);
    }
}

void search_lists(const Kernels& kernels, const Shelf& shelf, const Visits& visits, int n,
                  const Question* questions, int k, float* scores, std::int64_t* ids) {
    for (int i = 0; i < n; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) * k;
        Walk<Heap> walk(kernels, shelf, questions[i], Heap{k, scores + at, ids + at});
        visit(visits, i, walk);
    }
}

std::int64_t within_lists(const Kernels& kernels, const Shelf& shelf, const Visits& visits,
                          const Question& question, float limit, std::int64_t room, float* scores,
                          std::int64_t* ids) {
    Walk<List> walk(kernels, shelf, question, List{limit, room, 0, scores, ids});
    visit(visits, 0, walk);
    return walk.sink.count;
}

void gather(const Shelf& shelf, std::int64_t count, std::uint8_t* to, std::int64_t* rows) {
    const int L = shelf.lines.count();
    // Memory is read faster in one stream than in parts of it, unless they are few.
    const bool all = kFewBlocks * count > shelf.blocks;
    std::int64_t found = 0;
    for (std::int64_t b = 0; b < shelf.blocks; ++b) {
        const std::uint8_t* from = shelf.codes + b * L * kBlock;
        if (b + kAhead < shelf.blocks && (all || shelf.keep[b + kAhead])) {
            for (int l = 0; l < L; ++l) __builtin_prefetch(from + (kAhead * L + l) * kBlock);
        }
        for (std::uint64_t word = shelf.keep[b]; word; word &= word - 1, ++found) {
            const int row = __builtin_ctzll(word);
            std::uint8_t* out = to + found / kBlock * L * kBlock + found % kBlock;
            for (int l = 0; l < L; ++l) out[l * kBlock] = from[l * kBlock + row];
            rows[found] = b * kBlock + row;
        }
    }
}

}  // namespace gkmeans
