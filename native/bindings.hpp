// What the bindings share: arrays as they come from Python, and the checks of them.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <climits>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "kernels.hpp"
#include "search.hpp"

namespace nb = nanobind;

namespace gkmeans {

template <typename T, int N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <typename T, int N>
using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Level = std::optional<std::string>;

inline void require(bool ok, const char* rule) {
    if (!ok) throw nb::value_error(rule);
}

inline int dimension(std::size_t size) {
    require(size <= INT_MAX, "a dimension is larger than 2^31 - 1; pass smaller blocks");
    return static_cast<int>(size);
}

inline const Kernels& at_level(const Level& level) {
    if (!level) return active();
    const Kernels* k = find(level->c_str());
    require(k != nullptr, "level is not one that this CPU and build have; see simd_levels()");
    return *k;
}

struct Free {
    void operator()(void* p) const { std::free(p); }
};

inline std::unique_ptr<void, Free> allocate(std::size_t bytes) {
    void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) throw std::bad_alloc();
    return std::unique_ptr<void, Free>(p);
}

// The rows with their ids and norms, and the tables that a query brings to them.
Shelf searched_shelf(const In<std::uint8_t, 3>& blocks, const In<std::uint64_t, 1>& keep,
                     const In<std::int64_t, 1>& ids, std::int64_t first, int bits, const In<float, 1>& levels,
                     const In<float, 1>& norms, int C, int Kp);

void bind_lists(nb::module_&);     // bindings_lists.cpp
void bind_products(nb::module_&);  // bindings_products.cpp

inline constexpr const char* kNoBytes = "this CPU or build makes no products in bytes; see coarse_products()";

}  // namespace gkmeans
