// Reads memory as fast as one thread can, in so many streams at once: what a scan is measured against.
#include <cstddef>
#include <cstdint>

extern "C" std::uint64_t read_streams(const std::uint64_t* p, std::size_t words, std::size_t streams) {
    const std::size_t part = words / streams;
    std::uint64_t seen[32] = {};
    for (std::size_t i = 0; i + 32 <= part; i += 32)
        for (std::size_t s = 0; s < streams; ++s)
            for (std::size_t j = 0; j < 32; ++j) seen[j] |= p[s * part + i + j];
    std::uint64_t all = 0;
    for (std::uint64_t one : seen) all |= one;
    return all;
}
