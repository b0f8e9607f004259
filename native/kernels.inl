// Everything one level is made of; kernels_*.cpp name the level and include this.
//
// No standard-library templates here: a copy compiled for a wide level could be linked in for all of them.
#include "draw.hpp"
//
#include "kernels.hpp"
//
#include "simd.inl"
//
#include "assign1.inl"
//
#include "assign2.inl"
//
#include "assign_n.inl"
//
#include "perturb.inl"
//
#include "pursuit_bounds.inl"
//
#include "pursuit.inl"
//
#include "sums.inl"
//
#include "simd_bytes.inl"
//
#include "scan.inl"
