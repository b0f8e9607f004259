// Order-1 group assignment in 16-bit steps by AVX-512; swift.hpp says what it is.
//
// V (C, Ks) holds the cost of each codeword given the row's other codes, always up to date: a change of one
// code adds one row of T to it and takes another away.
#include "swift.hpp"

#include <immintrin.h>

#include <numeric>

#include "draw.hpp"

namespace gkmeans {

constexpr int kMaxSweeps = 100;
constexpr int kFewest = 3,
              kMost = 16;   // codes that a round chooses anew: half of them, but at least and at most these
constexpr int kGreedy = 8;  // of the first rounds in turn, at most C, begin without a draw

std::size_t swift_workspace(int C, int Ks, int P) {
    const std::size_t costs = static_cast<std::size_t>(C) * Ks * sizeof(Short);
    return lines(coarse_workspace(P)) + lines(kSwiftRows * Ks * sizeof(float)) + (kSwiftRows + 2) * costs +
           lines(2 * C * sizeof(Code));
}

void swift_pack(int C, int K, int Kp, int Ks, const float* T, int c, float each, Short* out) {
    const __m512 times = _mm512_set1_ps(each);
    for (int b = 0; b < C; ++b) {
        for (int j = 0; j < K; ++j, T += Kp) {
            Short* row = out + ((static_cast<std::size_t>(b) * K + j) * C + c) * Ks;
            __builtin_memset(row, 0, Ks * sizeof(Short));
            for (int k = 0; k < Kp && b != c; k += 16) {
                const __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(T + k), times));
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + k), _mm512_cvtsepi32_epi16(steps));
            }
        }
    }
}

// The least number from C / 2 - 1 on that has no divisor in common with C: by such strides all are reached.
static int stride(int C) {
    int step = C / 2 > 2 ? C / 2 - 1 : 1;
    while (std::gcd(step, C) > 1) ++step;
    return step;
}

static inline __m512i shorts(const Short* p) { return _mm512_loadu_si512(p); }

static inline int least_lane(__m512i v) {
    const __m256i half = _mm256_min_epi16(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    const __m128i m = _mm_min_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i low = _mm_minpos_epu16(_mm_xor_si128(m, _mm_set1_epi16(-32768)));
    return static_cast<Short>(_mm_extract_epi16(low, 0) ^ 0x8000);
}

// The costs of one dictionary's codewords alone, in steps above the least of them, from products (Ks) with a
// row.
static void own_costs(int Ks, const float* products, const float* N, float each, Short* out) {
    const __m512 times = _mm512_set1_ps(each), most = _mm512_set1_ps(kMostAlone);
    const auto cost = [&](int k) {
        return _mm512_sub_ps(_mm512_loadu_ps(N + k), _mm512_mul_ps(_mm512_loadu_ps(products + k), times));
    };
    __m512 low = cost(0);
    for (int k = 16; k < Ks; k += 16) low = _mm512_min_ps(low, cost(k));
    const __m512 least = _mm512_set1_ps(_mm512_reduce_min_ps(low));
    for (int k = 0; k < Ks; k += 16) {
        const __m512i steps = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_sub_ps(cost(k), least), most));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k), _mm512_cvtsepi32_epi16(steps));
    }
}

namespace {

// One row on its way.
struct Row {
    const Steps& t;
    const Short* S;  // (C, Ks)  the costs of codewords alone
    Short* V;        // (C, Ks)
    Short* best;     // (C, Ks)  V of the best codes so far
    Code* code;      // (C)
    Code* held;      // (C)      the best ones
    Code* order;     // (C)      dictionaries, those chosen anew first
    int step;        // between the starts of rounds in turn

    int size() const { return t.C * t.Ks; }

    int least(int c) const {
        const Short* v = V + c * t.Ks;
        __m512i low = shorts(v);
        for (int k = kShorts; k < t.Ks; k += kShorts) low = _mm512_min_epi16(low, shorts(v + k));
        return least_lane(low);
    }

    // The first codeword of c with this cost. No early end: a branch that nothing foretells costs more.
    Code place(int c, int cost) const {
        const Short* v = V + c * t.Ks;
        const __m512i wanted = _mm512_set1_epi16(static_cast<Short>(cost));
        int found = 0;
        for (int k = t.Ks - kShorts; k >= 0; k -= kShorts) {
            const __mmask32 mask = _mm512_cmpeq_epi16_mask(shorts(v + k), wanted);
            found = mask ? k + __builtin_ctz(mask) : found;
        }
        return static_cast<Code>(
            found < t.K ? found : t.K - 1);  // past K by costs that are no numbers, or choose_other
    }

    // Calls `each` with every place of V but those of dictionary c, to which its own codeword adds nothing.
    template <class Each>
    void beside(int c, Each each) const {
        const int own = c * t.Ks, end = size();
        for (int k = own + t.Ks; k < end; k += kShorts) each(k);
        for (int k = 0; k < own; k += kShorts) each(k);
    }

    void add(int c) {
        const Short* now = t.row(c, code[c]);
        beside(c,
               [&](int k) { _mm512_storeu_si512(V + k, _mm512_add_epi16(shorts(V + k), shorts(now + k))); });
    }

    void change(int c, Code to) {
        const Short *before = t.row(c, code[c]), *now = t.row(c, to);
        beside(c, [&](int k) {
            const __m512i moved = _mm512_sub_epi16(shorts(now + k), shorts(before + k));
            _mm512_storeu_si512(V + k, _mm512_add_epi16(shorts(V + k), moved));
        });
        code[c] = to;
    }

    // From S: all codes greedily, or as given.
    void begin(bool start) {
        __builtin_memcpy(V, S, size() * sizeof(Short));
        for (int c = 0; c < t.C; ++c) {
            if (start) code[c] = place(c, least(c));
            add(c);
        }
        refine(t.C - 1, start);
    }

    // Sweeps until no code changes, from the dictionary after `last` on, whose own code is the best there is
    // where `clean`.
    void refine(int last, int clean) {
        for (int visit = 0, c = last; clean < t.C && visit < kMaxSweeps * t.C; ++visit) {
            c = c + 1 < t.C ? c + 1 : 0;
            const int cost = least(c);
            ++clean;
            if (cost < V[c * t.Ks + code[c]]) {
                change(c, place(c, cost));
                clean = 1;
            }
        }
    }

    // Twice the cost of the codes: in the sum of V each pair of codewords counts twice.
    int total() const {
        int cost = 0;
        for (int c = 0; c < t.C; ++c) cost += V[c * t.Ks + code[c]] + S[c * t.Ks + code[c]];
        return cost;
    }

    void keep() {
        __builtin_memcpy(best, V, size() * sizeof(Short));
        __builtin_memcpy(held, code, t.C * sizeof(Code));
    }

    // Asks for what a codeword adds.
    void fetch(int c, int k) const {
        const Short* row = t.row(c, k);
        beside(c, [&](int at) { __builtin_prefetch(row + at, 0, 3); });
    }

    // Sets the order of one of the first 2 C rounds: neighbours, downwards, then upwards. Rounds that follow
    // each other start `step` apart, so that with many dictionaries they choose others.
    void take_turns(int round) {
        const int first = (t.C / 2 + round % t.C * step) % t.C;
        for (int x = 0; x < t.C; ++x)
            order[x] = static_cast<Code>((first + (round < t.C ? t.C - x : x)) % t.C);
    }

    // Draws the first `count` of the order.
    void draw(int count, std::uint64_t* state) {
        for (int c = 0; c < t.C; ++c) order[c] = static_cast<Code>(c);
        for (int x = 0; x < count; ++x) {
            const int y = x + drawn(state, t.C - x);
            const Code c = order[y];
            order[y] = order[x];
            order[x] = c;
        }
    }

    // V of the best codes but the first `count` of `order`, and with what `more` (C, Ks) adds.
    template <class More>
    void take_away(int count, More more) {
        const Short* gone[kMost];
        for (int x = 0; x < count; ++x) gone[x] = t.row(order[x], held[order[x]]);
        for (int k = 0; k < size(); k += kShorts) {
            __m512i v = more(k, shorts(best + k));
            for (int x = 0; x < count; ++x) v = _mm512_sub_epi16(v, shorts(gone[x] + k));
            _mm512_storeu_si512(V + k, v);
        }
    }

    // Chooses the best codeword of c but the one held.
    void choose_other(int c) {
        Short& own = V[c * t.Ks + held[c]];
        const Short cost = own;
        own = 32767;
        code[c] = place(c, least(c));
        own = cost;
        add(c);
    }

    // Takes `count` of the best codes away and chooses them anew, one after the other, the first at random,
    // or in the first rounds `in_turn` another than before; then refines.
    void choose_anew(int count, int round, bool in_turn, std::uint64_t seed) {
        const bool greedy = in_turn && round < t.C && round < kGreedy;
        std::uint64_t state = seed;
        for (int c = 0; c < t.C && !greedy; ++c) state = mixed(state ^ held[c]);
        if (in_turn && round < 2 * t.C)
            take_turns(round);
        else
            draw(count, &state);
        __builtin_memcpy(code, held, t.C * sizeof(Code));
        const int c = order[0];
        if (greedy) {
            take_away(count, [](int, __m512i v) { return v; });
            choose_other(c);
        } else {
            code[c] = static_cast<Code>(drawn(&state, t.K));
            fetch(c, code[c]);
            const Short* now = t.row(c, code[c]);
            take_away(count, [now](int k, __m512i v) { return _mm512_add_epi16(v, shorts(now + k)); });
        }
        for (int x = 1; x < count; ++x) {
            code[order[x]] = place(order[x], least(order[x]));
            add(order[x]);
        }
        refine(order[count - 1], count > 1);
    }

    void improve(int rounds, bool in_turn, std::uint64_t seed) {
        const int half = t.C / 2 < kMost ? t.C / 2 : kMost;
        const int count = half > kFewest ? half : t.C < kFewest ? t.C : kFewest;
        int cost = total();
        keep();
        for (int r = 0; r < rounds; ++r) {
            choose_anew(count, r, in_turn, mixed(seed + r));
            const int now = total();
            if (now >= cost) continue;
            cost = now;
            keep();
        }
        __builtin_memcpy(code, held, t.C * sizeof(Code));
    }
};

}  // namespace

void swift_assign(const Steps& t, int n, int P, const float* X, const std::uint8_t* packed, Code* codes,
                  bool start, int rounds, bool in_turn, std::uint64_t seed, void* work,
                  const volatile int* stop) {
    const std::size_t Ks = t.Ks, wide = t.C * Ks;
    float* products = reinterpret_cast<float*>(static_cast<char*>(work) + lines(coarse_workspace(P)));
    Short* S = reinterpret_cast<Short*>(products + kSwiftRows * Ks);
    Short *V = S + kSwiftRows * wide, *best = V + wide;
    Code* held = reinterpret_cast<Code*>(best + wide);
    const int step = stride(t.C);
    for (int first = 0; first < n && !*stop; first += kSwiftRows) {
        const int some = n - first < kSwiftRows ? n - first : kSwiftRows;
        const Rounded rounded = rounded_in(work, some, P);
        coarse_round(X + static_cast<std::size_t>(first) * P, rounded);
        for (int c = 0; c < t.C; ++c) {
            coarse_times(rounded, t.Ks, packed + c * coarse_size(t.Ks, P), products);
            for (int i = 0; i < some; ++i)
                own_costs(t.Ks, products + i * Ks, t.N + c * Ks, t.each, S + i * wide + c * Ks);
        }
        for (int i = 0; i < some && !*stop; ++i) {
            Row row{t,    S + i * wide, V,   best, codes + static_cast<std::size_t>(first + i) * t.C,
                    held, held + t.C,   step};
            row.begin(start);
            if (rounds > 0) row.improve(rounds, in_turn, seed);
        }
    }
}

}  // namespace gkmeans
