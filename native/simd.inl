// A register of floats for the level being compiled; the only place that names instructions.
#if defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace gkmeans {
namespace GKMEANS_LEVEL {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
using Vec = __m512;
static inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
static inline Vec splat(float x) { return _mm512_set1_ps(x); }
static inline Vec least(Vec a, Vec b) { return _mm512_min_ps(a, b); }
static inline Vec fused(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline float least_lane(Vec v) { return _mm512_reduce_min_ps(v); }
static inline unsigned lanes_equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline unsigned lanes_below(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
#elif defined(__AVX2__)
constexpr int kLanes = 8;
using Vec = __m256;
static inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
static inline Vec splat(float x) { return _mm256_set1_ps(x); }
static inline Vec least(Vec a, Vec b) { return _mm256_min_ps(a, b); }
static inline Vec fused(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline float least_lane(Vec v) {
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_shuffle_ps(m, m, 1)));
}
static inline unsigned lanes_equal(Vec a, Vec b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}
static inline unsigned lanes_below(Vec a, Vec b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
#elif defined(__SSE2__)
constexpr int kLanes = 4;
using Vec = __m128;
static inline Vec load(const float* p) { return _mm_loadu_ps(p); }
static inline void store(float* p, Vec v) { _mm_storeu_ps(p, v); }
static inline Vec splat(float x) { return _mm_set1_ps(x); }
static inline Vec least(Vec a, Vec b) { return _mm_min_ps(a, b); }
static inline Vec fused(Vec a, Vec b, Vec c) { return a * b + c; }  // SSE2 has none: rounded twice
static inline float least_lane(Vec v) {
    __m128 m = _mm_min_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_shuffle_ps(m, m, 1)));
}
static inline unsigned lanes_equal(Vec a, Vec b) { return _mm_movemask_ps(_mm_cmpeq_ps(a, b)); }
static inline unsigned lanes_below(Vec a, Vec b) { return _mm_movemask_ps(_mm_cmplt_ps(a, b)); }
#elif defined(__ARM_NEON)
constexpr int kLanes = 4;
using Vec = float32x4_t;
static inline Vec load(const float* p) { return vld1q_f32(p); }
static inline void store(float* p, Vec v) { vst1q_f32(p, v); }
static inline Vec splat(float x) { return vdupq_n_f32(x); }
static inline Vec least(Vec a, Vec b) { return vminq_f32(a, b); }
static inline Vec fused(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
static inline float least_lane(Vec v) { return vminvq_f32(v); }
static inline unsigned lane_bits(uint32x4_t m) {
    const uint32x4_t bit = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m, bit));
}
static inline unsigned lanes_equal(Vec a, Vec b) { return lane_bits(vceqq_f32(a, b)); }
static inline unsigned lanes_below(Vec a, Vec b) { return lane_bits(vcltq_f32(a, b)); }
#else
#error "the baseline level needs SSE2 or NEON"
#endif
// Vec has +, - and * by the compiler's vector extension.

// A register of shorts. Sums stop at 32767 and -32768; what is held is never negative.
using Short = std::int16_t;
#if defined(__AVX512BW__)
using Shorts = __m512i;
static inline Shorts load_shorts(const Short* p) { return _mm512_loadu_si512(p); }
static inline void store_shorts(Short* p, Shorts v) { _mm512_storeu_si512(p, v); }
static inline Shorts splat_short(int x) { return _mm512_set1_epi16(static_cast<Short>(x)); }
static inline Shorts add_shorts(Shorts a, Shorts b) { return _mm512_adds_epi16(a, b); }
static inline Shorts least_shorts(Shorts a, Shorts b) { return _mm512_min_epi16(a, b); }
static inline unsigned shorts_up_to(Shorts a, Shorts b) { return _mm512_cmple_epi16_mask(a, b); }
static inline int least_short(Shorts v) {
    const __m256i half = _mm256_min_epi16(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    const __m128i m = _mm_min_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return _mm_extract_epi16(_mm_minpos_epu16(m), 0);
}
#elif defined(__AVX2__)
using Shorts = __m256i;
static inline Shorts load_shorts(const Short* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
static inline void store_shorts(Short* p, Shorts v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
static inline Shorts splat_short(int x) { return _mm256_set1_epi16(static_cast<Short>(x)); }
static inline Shorts add_shorts(Shorts a, Shorts b) { return _mm256_adds_epi16(a, b); }
static inline Shorts least_shorts(Shorts a, Shorts b) { return _mm256_min_epi16(a, b); }
static inline unsigned shorts_up_to(Shorts a, Shorts b) {
    const __m128i low = _mm_cmpgt_epi16(_mm256_castsi256_si128(a), _mm256_castsi256_si128(b));
    const __m128i high = _mm_cmpgt_epi16(_mm256_extracti128_si256(a, 1), _mm256_extracti128_si256(b, 1));
    return ~_mm_movemask_epi8(_mm_packs_epi16(low, high)) & 0xffff;
}
static inline int least_short(Shorts v) {
    const __m128i m = _mm_min_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return _mm_extract_epi16(_mm_minpos_epu16(m), 0);
}
#elif defined(__SSE2__)
using Shorts = __m128i;
static inline Shorts load_shorts(const Short* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
static inline void store_shorts(Short* p, Shorts v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
static inline Shorts splat_short(int x) { return _mm_set1_epi16(static_cast<Short>(x)); }
static inline Shorts add_shorts(Shorts a, Shorts b) { return _mm_adds_epi16(a, b); }
static inline Shorts least_shorts(Shorts a, Shorts b) { return _mm_min_epi16(a, b); }
static inline unsigned shorts_up_to(Shorts a, Shorts b) {
    return ~_mm_movemask_epi8(_mm_packs_epi16(_mm_cmpgt_epi16(a, b), _mm_set1_epi16(-1))) & 0xff;
}
static inline int least_short(Shorts v) {
    v = _mm_min_epi16(v, _mm_unpackhi_epi64(v, v));
    v = _mm_min_epi16(v, _mm_shuffle_epi32(v, 1));
    return _mm_extract_epi16(_mm_min_epi16(v, _mm_shufflelo_epi16(v, 1)), 0);
}
#else
using Shorts = int16x8_t;
static inline Shorts load_shorts(const Short* p) { return vld1q_s16(p); }
static inline void store_shorts(Short* p, Shorts v) { vst1q_s16(p, v); }
static inline Shorts splat_short(int x) { return vdupq_n_s16(static_cast<Short>(x)); }
static inline Shorts add_shorts(Shorts a, Shorts b) { return vqaddq_s16(a, b); }
static inline Shorts least_shorts(Shorts a, Shorts b) { return vminq_s16(a, b); }
static inline unsigned shorts_up_to(Shorts a, Shorts b) {
    const uint16x8_t bit = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddvq_u16(vandq_u16(vcleq_s16(a, b), bit));
}
static inline int least_short(Shorts v) { return vminvq_s16(v); }
#endif
constexpr int kShorts = sizeof(Shorts) / sizeof(Short);

// The number of each lane, for lists of lanes.
#if defined(__AVX512F__)
using Lanes = __m512i;
static inline Lanes lanes_from(int first) {
    const __m512i each = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_epi32(each, _mm512_set1_epi32(first));
}
static inline Lanes next_lanes(Lanes lanes) { return _mm512_add_epi32(lanes, _mm512_set1_epi32(kLanes)); }
#else
using Lanes = int;
static inline Lanes lanes_from(int first) { return first; }
static inline Lanes next_lanes(Lanes lanes) { return lanes + kLanes; }
#endif

// Writes the number of every lane in the mask; returns how many. Up to kLanes entries past those are
// overwritten.
static inline int list_lanes(unsigned mask, Lanes lanes, int* out) {
#if defined(__AVX512F__)
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), lanes));
    return __builtin_popcount(mask);
#else
    int count = 0;
    for (; mask; mask &= mask - 1) out[count++] = lanes + __builtin_ctz(mask);
    return count;
#endif
}

// Writes the lanes in the mask; up to kLanes entries past those are overwritten.
static inline void list_values(unsigned mask, Vec values, float* out) {
#if defined(__AVX512F__)
    store(out, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), values));
#else
    float lanes[kLanes];
    store(lanes, values);
    for (; mask; mask &= mask - 1) *out++ = lanes[__builtin_ctz(mask)];
#endif
}

// out[g] = the least of the 16 values from 16 g on, of 256; at(k) gives the register of those from k
// on. Returns the least of all.
template <typename At>
static inline float least_of_sixteens(const At& at, float* out) {
#if defined(__AVX512F__)
    // Four rounds, each folding two registers into one; the last permutation puts the groups in order.
    Vec m[16];
    for (int g = 0; g < 16; ++g) m[g] = at(16 * g);
    for (int g = 0; g < 8; ++g) {
        m[g] = least(_mm512_shuffle_f32x4(m[g], m[g + 8], 0x44), _mm512_shuffle_f32x4(m[g], m[g + 8], 0xEE));
    }
    for (int g = 0; g < 4; ++g) {
        m[g] = least(_mm512_shuffle_f32x4(m[g], m[g + 4], 0x88), _mm512_shuffle_f32x4(m[g], m[g + 4], 0xDD));
    }
    for (int g = 0; g < 2; ++g) {
        m[g] = least(_mm512_shuffle_ps(m[g], m[g + 2], 0x44), _mm512_shuffle_ps(m[g], m[g + 2], 0xEE));
    }
    const Vec all = least(_mm512_shuffle_ps(m[0], m[1], 0x88), _mm512_shuffle_ps(m[0], m[1], 0xDD));
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    store(out, _mm512_permutexvar_ps(order, all));
    return least_lane(all);
#else
    Vec low = splat(__builtin_inff());
    for (int g = 0; g < 16; ++g) {
        Vec m = at(16 * g);
        for (int k = 16 * g + kLanes; k < 16 * g + 16; k += kLanes) m = least(m, at(k));
        out[g] = least_lane(m);
        low = least(low, m);
    }
    return least_lane(low);
#endif
}

// The greatest of 16 values that at most `count` of them are below.
static inline float least_but(const float* values, int count) {
#if defined(__AVX512F__)
    const Vec v = load(values);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i below = _mm512_setzero_si512(), turned = lanes_from(1);
    for (int turn = 1; turn < 16; ++turn, turned = _mm512_add_epi32(turned, one)) {
        const __mmask16 less = lanes_below(_mm512_permutexvar_ps(turned, v), v);
        below = _mm512_mask_add_epi32(below, less, below, one);
    }
    return _mm512_mask_reduce_max_ps(_mm512_cmple_epi32_mask(below, _mm512_set1_epi32(count)), v);
#else
    float limit = -__builtin_inff();
    for (int x = 0; x < 16; ++x) {
        int below = 0;
        for (int k = 0; k < 16; k += kLanes) {
            below += __builtin_popcount(lanes_below(load(values + k), splat(values[x])));
        }
        if (below <= count && values[x] > limit) limit = values[x];
    }
    return limit;
#endif
}

// Index of the first of Kp values equal to x; x is one of them.
static inline int index_of(const float* values, int Kp, float x) {
    const Vec vx = splat(x);
    for (int k = 0; k < Kp; k += kLanes) {
        if (const unsigned mask = lanes_equal(load(values + k), vx)) return k + __builtin_ctz(mask);
    }
    return 0;
}

static inline float least_of(const float* values, int Kp) {
    Vec m = load(values);
    for (int k = kLanes; k < Kp; k += kLanes) m = least(m, load(values + k));
    return least_lane(m);
}

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans
