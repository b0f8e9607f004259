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

// Half of each byte in its low seven bits; the eighth is of its neighbour.
static inline Bytes half_bytes(Bytes v) {
#if defined(__AVX512BW__)
    return _mm512_srli_epi16(v, 1);
#else
    return _mm256_srli_epi16(v, 1);
#endif
}

// A table of 256 bytes: those at each of the codes; one of 128: those at the low seven bits of each, where
// that is worth it (kHalving; two lookups by VBMI take no longer than the rows that one leaves). Where
// kPaired, entries lie in words, each with the one half of the table further on.
#if defined(__AVX512VBMI__)
constexpr bool kPaired = false, kHalving = false;
struct Table256 {
    Bytes a, b, c, d;
    explicit Table256(const std::uint8_t* t)
        : a(load_bytes(t)), b(load_bytes(t + 64)), c(load_bytes(t + 128)), d(load_bytes(t + 192)) {}
    Bytes operator()(Bytes codes) const {
        const Bytes low = _mm512_permutex2var_epi8(a, codes, b);  // by the low 7 bits
        return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, _mm512_permutex2var_epi8(c, codes, d));
    }
};
#elif defined(__AVX512BW__)
constexpr bool kPaired = true, kHalving = true;
// The words that 32 even codes, and 32 odd ones, name by six bits, and of each the byte that `bit` names.
template <int bit>
static inline Bytes choose(Bytes codes, Bytes even, Bytes odd) {
    const __mmask32 second = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(1 << bit));
    const __mmask32 first = _mm512_testn_epi16_mask(codes, _mm512_set1_epi16(static_cast<short>(256 << bit)));
    even = _mm512_mask_srli_epi16(even, second, even, 8);
    odd = _mm512_mask_slli_epi16(odd, first, odd, 8);
    return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaaull, even, odd);
}
struct Table128 {
    Bytes a, b;
    explicit Table128(const std::uint8_t* t) : a(load_bytes(t)), b(load_bytes(t + 64)) {}
    Bytes operator()(Bytes codes) const {
        const Bytes even = _mm512_permutex2var_epi16(a, codes, b);
        return choose<6>(codes, even, _mm512_permutex2var_epi16(a, _mm512_srli_epi16(codes, 8), b));
    }
};
struct Table256 {
    Bytes a, b, c, d;
    explicit Table256(const std::uint8_t* t)
        : a(load_bytes(t)), b(load_bytes(t + 64)), c(load_bytes(t + 128)), d(load_bytes(t + 192)) {}
    Bytes words(Bytes codes) const {
        const __mmask32 later = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(64));
        return _mm512_mask_blend_epi16(later, _mm512_permutex2var_epi16(a, codes, b),
                                       _mm512_permutex2var_epi16(c, codes, d));
    }
    Bytes operator()(Bytes codes) const {
        return choose<7>(codes, words(codes), words(_mm512_srli_epi16(codes, 8)));
    }
};
#else
constexpr bool kPaired = false, kHalving = true;
// a or b at each byte, as bit 7 - shift of the code says
static inline Bytes choose(Bytes a, Bytes b, Bytes codes, int shift) {
    return _mm256_blendv_epi8(a, b, _mm256_slli_epi16(codes, shift));
}
// Those at the low six bits.
static inline Bytes at_six_bits(const std::uint8_t* table, Bytes codes) {
    const Bytes nibbles = low_nibbles(codes);
    const auto sixteen = [&](int first) { return Table16(table + first)(nibbles); };
    return choose(choose(sixteen(0), sixteen(16), codes, 3), choose(sixteen(32), sixteen(48), codes, 3),
                  codes, 2);
}
struct Table128 {
    const std::uint8_t* table;
    explicit Table128(const std::uint8_t* t) : table(t) {}
    Bytes operator()(Bytes codes) const {
        return choose(at_six_bits(table, codes), at_six_bits(table + 64, codes), codes, 1);
    }
};
struct Table256 {
    Table128 low, high;
    explicit Table256(const std::uint8_t* t) : low(t), high(t + 128) {}
    Bytes operator()(Bytes codes) const { return choose(low(codes), high(codes), codes, 0); }
};
#endif

template <bool halved>
struct Tables256 {
    using Type = Table256;
};
#if !defined(__AVX512VBMI__)
template <>
struct Tables256<true> {
    using Type = Table128;
};
#endif
template <bool halved>
using TableOf = typename Tables256<halved>::Type;

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans
#endif
