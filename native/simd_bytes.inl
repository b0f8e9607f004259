// A register of bytes for the level being compiled, and lookups in tables of 16 and 256 bytes. With simd.inl
// the only place that names instructions. Levels without wide byte shuffles have none of it.
#if defined(__AVX2__)
#define GKMEANS_BYTES 1

namespace gkmeans {
namespace GKMEANS_LEVEL {

#if defined(__AVX512BW__)
constexpr int kBytes = 64;
using Bytes = __m512i;
static inline Bytes load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
static inline Bytes no_bytes() { return _mm512_setzero_si512(); }
static inline Bytes low_nibbles(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
static inline Bytes high_nibbles(Bytes v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
static inline Bytes add_bytes(Bytes a, Bytes b) { return _mm512_adds_epu8(a, b); }
static inline Bytes add_pairs(Bytes a, Bytes b) { return _mm512_add_epi16(a, b); }
static inline Bytes odd_bytes(Bytes v) { return _mm512_srli_epi16(v, 8); }
// Bit i: whether byte i is at most limit.
static inline std::uint64_t bytes_up_to(Bytes v, int limit) {
    return _mm512_cmple_epu8_mask(v, _mm512_set1_epi8(static_cast<char>(limit)));
}
// Bit i: whether short i / 2 of even (i even) or of odd (i odd) is at most limit.
static inline std::uint64_t up_to(Bytes even, Bytes odd, int limit) {
    const Bytes most = _mm512_set1_epi16(static_cast<short>(limit));
    const __mmask32 e = _mm512_cmple_epu16_mask(even, most), o = _mm512_cmple_epu16_mask(odd, most);
    if (!(e | o)) return 0;
    return _mm512_movepi8_mask(
        _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaaull, _mm512_movm_epi16(e), _mm512_movm_epi16(o)));
}
static inline Bytes even_sums(Bytes all, Bytes odd) {
    return _mm512_sub_epi16(all, _mm512_slli_epi16(odd, 8));
}
static inline std::uint64_t not_zero(Bytes v) { return _mm512_test_epi8_mask(v, v); }
static inline Bytes in_every_lane(__m128i v) { return _mm512_broadcast_i32x4(v); }
static inline Bytes shuffled(Bytes table, Bytes nibbles) { return _mm512_shuffle_epi8(table, nibbles); }
#else
constexpr int kBytes = 32;
using Bytes = __m256i;
static inline Bytes load_bytes(const std::uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
static inline Bytes no_bytes() { return _mm256_setzero_si256(); }
static inline Bytes low_nibbles(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
static inline Bytes high_nibbles(Bytes v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
static inline Bytes add_bytes(Bytes a, Bytes b) { return _mm256_adds_epu8(a, b); }
static inline Bytes add_pairs(Bytes a, Bytes b) { return _mm256_add_epi16(a, b); }
static inline Bytes odd_bytes(Bytes v) { return _mm256_srli_epi16(v, 8); }
static inline std::uint64_t bytes_up_to(Bytes v, int limit) {
    const Bytes least = _mm256_min_epu8(v, _mm256_set1_epi8(static_cast<char>(limit)));
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(least, v)));
}
static inline std::uint64_t up_to(Bytes even, Bytes odd, int limit) {
    const Bytes most = _mm256_set1_epi16(static_cast<short>(limit));
    const Bytes e = _mm256_cmpeq_epi16(_mm256_min_epu16(even, most), even);
    const Bytes o = _mm256_cmpeq_epi16(_mm256_min_epu16(odd, most), odd);
    return static_cast<std::uint32_t>(
        _mm256_movemask_epi8(_mm256_blendv_epi8(e, o, _mm256_set1_epi16(static_cast<short>(0xff00)))));
}
static inline Bytes even_sums(Bytes all, Bytes odd) {
    return _mm256_sub_epi16(all, _mm256_slli_epi16(odd, 8));
}
static inline std::uint64_t not_zero(Bytes v) {
    return ~static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, no_bytes())));
}
static inline Bytes in_every_lane(__m128i v) { return _mm256_broadcastsi128_si256(v); }
static inline Bytes shuffled(Bytes table, Bytes nibbles) { return _mm256_shuffle_epi8(table, nibbles); }
#endif

// A table of 16 bytes: those at each of the nibbles.
struct Table16 {
    Bytes table;
    explicit Table16(const std::uint8_t* t)
        : table(in_every_lane(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t)))) {}
    Bytes operator()(Bytes nibbles) const { return shuffled(table, nibbles); }
};

// A table of 256 bytes: those at each of the codes.
#if defined(__AVX512VBMI__)
struct Table256 {
    Bytes a, b, c, d;
    explicit Table256(const std::uint8_t* t)
        : a(load_bytes(t)), b(load_bytes(t + 64)), c(load_bytes(t + 128)), d(load_bytes(t + 192)) {}
    Bytes operator()(Bytes codes) const {
        const Bytes low = _mm512_permutex2var_epi8(a, codes, b);  // by the low 7 bits
        return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, _mm512_permutex2var_epi8(c, codes, d));
    }
};
#else
// a or b at each byte, as bit 7 - shift of the code says
static inline Bytes choose(Bytes a, Bytes b, Bytes codes, int shift) {
#if defined(__AVX512BW__)
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(_mm512_slli_epi16(codes, shift)), a, b);
#else
    return _mm256_blendv_epi8(a, b, _mm256_slli_epi16(codes, shift));
#endif
}
struct Table256 {
    const std::uint8_t* table;
    explicit Table256(const std::uint8_t* t) : table(t) {}
    Bytes operator()(Bytes codes) const {
        const Bytes nibbles = low_nibbles(codes);
        const auto sixteen = [&](int first) { return Table16(table + first)(nibbles); };
        Bytes part[4];
        for (int g = 0; g < 4; ++g) {
            const Bytes low = choose(sixteen(64 * g), sixteen(64 * g + 16), codes, 3);
            const Bytes high = choose(sixteen(64 * g + 32), sixteen(64 * g + 48), codes, 3);
            part[g] = choose(low, high, codes, 2);
        }
        return choose(choose(part[0], part[1], codes, 1), choose(part[2], part[3], codes, 1), codes, 0);
    }
};
#endif

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans
#endif
