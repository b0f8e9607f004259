// Perturb and refine: a way out of the local minima that group assignment ends in.
//
// A round sets some codes of every row at random, assigns anew from there, and keeps the better codes of the
// two (draw.hpp).

namespace gkmeans {
namespace GKMEANS_LEVEL {

// 1/2 |x - decoding|^2 - 1/2 |x|^2: in the sum of V each pair of codewords counts twice.
static inline double total_cost(const Tables& t, const Scratch& s, int i, Costs V, const Code* code) {
    double cost = 0;
    for (int c = 0; c < t.C; ++c) {
        float* v = V.at(i, c, t.Kp);
        refresh(t, s, i, c, code, v);
        cost += v[code[c]];
        for (int b = 0; b < c; ++b) cost -= t.row(c, b, code[b])[code[c]];
    }
    return cost;
}

static inline void assign_again(const Tables& t, int order, int n, Costs V, Code* codes, void* work,
                                const volatile int* stop) {
    order1(t, n, V, codes, work);
    if (order == 2) order2(t, n, V, codes, work, stop);
    if (order > 2) order_n(t, order, n, V, codes, work, stop);
}

// `kept` holds kept_bytes(C, n).
static void rounds(const Tables& t, int order, int count, std::uint64_t seed, int n, Costs V, Code* codes,
                   void* work, void* kept, const volatile int* stop) {
    double* cost = static_cast<double*>(kept);
    Code* best = reinterpret_cast<Code*>(cost + n);
    const std::size_t row = static_cast<std::size_t>(t.C) * sizeof(Code);
    const Scratch s = carve(t, n, work);
    for (int i = 0; i < n; ++i) cost[i] = total_cost(t, s, i, V, code_of(t, codes, i));
    __builtin_memcpy(best, codes, n * row);
    for (int r = 0; r < count && !*stop; ++r) {
        for (int i = 0; i < n; ++i) perturb(t.C, t.K, mixed(seed + r), code_of(t, codes, i));
        assign_again(t, order, n, V, codes, work, stop);
        if (*stop) break;
        for (int i = 0; i < n; ++i) {
            Code *code = code_of(t, codes, i), *held = code_of(t, best, i);
            const double now = total_cost(t, s, i, V, code);
            const bool better = now < cost[i];
            if (better) cost[i] = now;
            __builtin_memcpy(better ? held : code, better ? code : held, row);
        }
    }
    __builtin_memcpy(codes, best, n * row);
}

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans
