// The score of a row by the float tables: the same sum, in the same order, wherever its codes lie.
//
// Every file has its own copy: the linker could take the one made for a wide level.
#pragma once
#include <cstddef>

#include "search.hpp"

namespace gkmeans {
namespace {

constexpr int kTogether = 8;  // rows that are scored side by side

// What a row's code adds, whose byte of a dictionary lies at `line`, the next one `apart` bytes further;
// `odd` where it is the second of a line. Tables of nibbles and bytes have an entry for each (Kp = 16 or
// 256); shorts are checked, since files may be damaged.
template <int bits, int apart>
inline float entry(const std::uint8_t* line, bool odd, const float* table, int Kp) {
    if constexpr (bits == 8) {
        return table[*line];
    } else if constexpr (bits == 4) {
        return table[odd ? *line >> 4 : *line & 15];
    } else {
        const int code = *line | line[apart] << 8;
        return table[code < Kp ? code : 0];
    }
}

// Adds a row's entries, for n rows whose first byte lies at `line(i)`.
template <int bits, int apart, typename Line>
inline void add_entries(const Shelf& shelf, const float* tables, int n, Line line, float* out) {
    for (int c = 0; c < shelf.lines.C; ++c, tables += shelf.Kp) {
        const int at = (bits == 4 ? c / 2 : bits == 8 ? c : 2 * c) * apart;
        for (int i = 0; i < n; ++i) out[i] += entry<bits, apart>(line(i) + at, c % 2, tables, shelf.Kp);
    }
}

// Scores of n rows: number row(i) of all, whose first byte lies at line(i), those that follow `apart` bytes
// from each other. The sums are in the same order however many rows there are, and side by side.
template <int apart, typename Row, typename Line>
void score(const Shelf& shelf, const Question& question, int n, Row row, Line line, float* out) {
    const Lines& lines = shelf.lines;
    for (int i = 0; i < n; ++i) out[i] = question.bias;
    if (lines.bits == 8) {
        add_entries<8, apart>(shelf, question.tables, n, line, out);
    } else if (lines.bits == 4) {
        add_entries<4, apart>(shelf, question.tables, n, line, out);
    } else {
        add_entries<16, apart>(shelf, question.tables, n, line, out);
    }
    const std::size_t norm = static_cast<std::size_t>(lines.count() - 1) * apart;
    for (int i = 0; i < n; ++i) {
        if (shelf.norms) {
            out[i] += shelf.norms[row(i)];
        } else if (shelf.levels) {
            out[i] += shelf.levels[line(i)[norm]];
        }
        if (out[i] < question.floor) out[i] = question.floor;
    }
}

}  // namespace
}  // namespace gkmeans
