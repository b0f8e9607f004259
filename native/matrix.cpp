// A block of rows is cut into panels once and stays in L2; each panel of B is then met by all of them.
//
// No standard-library templates here, as in kernels.inl.
#include "matrix.hpp"

#include <immintrin.h>

#include <cstring>

namespace gkmeans {

namespace {

constexpr std::size_t kTileHalves = 16 * kStep;

struct alignas(64) TileShapes {
    std::uint8_t palette = 1, first = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileShapes kShapes;  // not on the stack: GCC may not see that all of it is read

struct Unit {  // set up for one call
    Unit() { _tile_loadconfig(&kShapes); }
    ~Unit() { _tile_release(); }
};

// 32 numbers of a row, zeros past `count`: their high halves and the low ones.
inline void cut(const float* x, int count, __m512i& high, __m512i& low) {
    const auto mask = [](int some) {
        return static_cast<__mmask16>(some >= 16 ? 0xffff : (1u << (some > 0 ? some : 0)) - 1);
    };
    const __m512 a = _mm512_maskz_loadu_ps(mask(count), x),
                 b = _mm512_maskz_loadu_ps(mask(count - 16), x + 16);
    const __m512i top = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
    const __m512 a0 =
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(top)), 16));
    const __m512 b0 =
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(top, 1)), 16));
    high = top;
    low = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(_mm512_sub_ps(b, b0), _mm512_sub_ps(a, a0)));
}

// Rows of A (n, P) as panels (steps, high and low, kWide rows, kStep numbers); rows past n are zeros.
void cut_rows(int n, int P, const float* A, std::uint16_t* out) {
    for (int r = 0; r < kWide; ++r) {
        for (int s = 0; s < steps(P); ++s) {
            __m512i high = _mm512_setzero_si512(), low = high;
            if (r < n) cut(A + static_cast<std::size_t>(r) * P + s * kStep, P - s * kStep, high, low);
            std::uint16_t* at = out + s * kPanel + r * kStep;
            _mm512_store_si512(at, high);
            _mm512_store_si512(at + kPanel / 2, low);
        }
    }
}

// The tile at `at`, and the one of the next step on its way to L1.
#define GKMEANS_LOAD(tile, at)                                                                       \
    do {                                                                                             \
        _tile_loadd(tile, at, 64);                                                                   \
        for (int line = 0; line < 16; ++line) _mm_prefetch(at + kPanel + line * kStep, _MM_HINT_T0); \
    } while (0)

// c (kWide, width) = A-panel times B-panel, both of `count` steps: high * low, high * high, low * high.
inline void panel_product(int count, const std::uint16_t* a, const std::uint16_t* b, float* c,
                          std::size_t width) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int s = 0; s < count; ++s, a += kPanel, b += kPanel) {
        const std::uint16_t *low_a = a + kPanel / 2, *low_b = b + kPanel / 2;
        GKMEANS_LOAD(4, a);
        GKMEANS_LOAD(6, low_b);
        _tile_dpbf16ps(0, 4, 6);
        GKMEANS_LOAD(7, low_b + kTileHalves);
        _tile_dpbf16ps(1, 4, 7);
        GKMEANS_LOAD(5, a + kTileHalves);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        GKMEANS_LOAD(6, b);
        _tile_dpbf16ps(0, 4, 6);
        GKMEANS_LOAD(7, b + kTileHalves);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        GKMEANS_LOAD(4, low_a);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        GKMEANS_LOAD(5, low_a + kTileHalves);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    const std::size_t stride = width * sizeof(float);
    _tile_stored(0, c, stride);
    _tile_stored(1, c + 16, stride);
    _tile_stored(2, c + 16 * width, stride);
    _tile_stored(3, c + 16 * width + 16, stride);
}

}  // namespace

void pack(int m, int P, const float* B, std::uint16_t* out) {
    const int count = steps(P);
    alignas(64) std::uint32_t words[2][16];
    for (int j = 0; j < panels(m) * kWide; ++j) {
        for (int s = 0; s < count; ++s) {
            __m512i high = _mm512_setzero_si512(), low = high;
            if (j < m) cut(B + static_cast<std::size_t>(j) * P + s * kStep, P - s * kStep, high, low);
            _mm512_store_si512(words[0], high);
            _mm512_store_si512(words[1], low);
            std::uint16_t* panel = out + (static_cast<std::size_t>(j / kWide) * count + s) * kPanel;
            for (int part = 0; part < 2; ++part) {  // a tile has a row for each pair of numbers
                std::uint16_t* tile = panel + part * (kPanel / 2) + (j % kWide / 16) * kTileHalves;
                for (int pair = 0; pair < 16; ++pair) {
                    std::memcpy(tile + (pair * 16 + j % 16) * 2, &words[part][pair], sizeof(std::uint32_t));
                }
            }
        }
    }
}

// out (rows, m) = A, as panels, times all of B^T.
static void multiply_panels(int rows, int m, int count, const std::uint16_t* A, const std::uint16_t* B,
                            float* out) {
    alignas(64) float corner[kWide * kWide];
    const std::size_t panel = count * kPanel;
    for (int j = 0; j < m; j += kWide, B += panel) {
        for (int r = 0; r < rows; r += kWide) {
            float* c = out + static_cast<std::size_t>(r) * m + j;
            const int high = rows - r < kWide ? rows - r : kWide, wide = m - j < kWide ? m - j : kWide;
            const bool whole = high == kWide && wide == kWide;
            panel_product(count, A + r / kWide * panel, B, whole ? c : corner, whole ? m : kWide);
            asm volatile("" ::: "memory");
            for (int i = 0; i < high && !whole; ++i) {
                std::memcpy(c + static_cast<std::size_t>(i) * m, corner + i * kWide, wide * sizeof(float));
            }
        }
    }
}

void multiply(const Sizes& sizes, const float* A, const std::uint16_t* B, float* out, void* work) {
    const auto [G, n, m, P, apart] = sizes;
    const int count = steps(P);
    const std::size_t panel = count * kPanel;
    std::uint16_t* own = static_cast<std::uint16_t*>(work);
    const Unit unit;
    for (int first = 0; first < n; first += kRows) {
        const int rows = n - first < kRows ? n - first : kRows;
        for (int r = 0; r < rows; r += kWide) {
            cut_rows(rows - r, P, A + static_cast<std::size_t>(first + r) * P, own + r / kWide * panel);
        }
        asm volatile("" ::: "memory");  // the tiles are loaded by code that does not say what it reads
        for (int g = 0; g < G; ++g) {
            multiply_panels(rows, m, count, own, B + static_cast<std::size_t>(g) * panels(m) * panel,
                            out + g * apart + static_cast<std::size_t>(first) * m);
        }
    }
}

}  // namespace gkmeans
