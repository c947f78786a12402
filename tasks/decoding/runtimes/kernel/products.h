// Matrices in panels: how rows of outputs become panels, and products of a few tokens with them, each panel read once.

#pragma once

#include <algorithm>
#include <limits>

#include "arithmetic.h"

// Inputs of a panel that are converted before they are turned over: few enough to stay in the first cache.
constexpr int64_t kTile = 64;

namespace {

template <Format format>
inline auto narrowed(float number, [[maybe_unused]] float scale) {
    if constexpr (format == kFloat32) {
        return number;
    } else if constexpr (format == kBfloat16) {
        return uint16_t(rounded_to_bfloat16(number));
    } else {
        return int8_t(int32_t(number / scale + kRoundsToInteger - kRoundsToInteger));
    }
}

// The scale with which a row fits integers up to 127; NaN where the row has one, so that its logits show it.
template <typename Number>
float scale_of(const Number* row, int64_t inputs) {
    float most = std::numeric_limits<float>::min();
    bool broken = false;
    for (int64_t input = 0; input < inputs; input++) {
        const float size = std::fabs(widened(row[input]));
        most = size > most ? size : most;
        broken |= size != size;
    }
    return broken ? NAN : most / 127;
}

// The rows that fall into one panel of a matrix; `row` numbers them in the matrix, `source` begins with the row `first`.
template <Format format, typename Number>
void pack_panel(const Number* source, int64_t first, int64_t row, int64_t end, int64_t inputs, void* packed, float* scales,
                int32_t* offsets) {
    using Packed = decltype(narrowed<format>(0.0f, 1.0f));
    Packed tile[kPanel][kTile], *numbers = static_cast<Packed*>(packed);
    const int64_t rows = end - row;
    const Number* from = source + (row - first) * inputs;
    if (format == kInt8)
        for (int64_t i = 0; i < rows; i++) scales[row + i] = scale_of(from + i * inputs, inputs);
    for (int64_t input = 0; input < inputs; input += kTile) {
        const int64_t count = std::min(kTile, inputs - input);
        for (int64_t i = 0; i < rows; i++) {
            const float scale = format == kInt8 ? scales[row + i] : 1.0f;
            for (int64_t j = 0; j < count; j++) tile[i][j] = narrowed<format>(widened(from[i * inputs + input + j]), scale);
            if (format == kInt8)
                for (int64_t j = 0; j < count; j++) offsets[row + i] += 128 * int32_t(tile[i][j]);
        }
        for (int64_t j = 0; j < count; j++)
            for (int64_t i = 0; i < rows; i++) numbers[weight_index<format>(inputs, row + i, input + j)] = tile[i][j];
    }
}

template <Format format, typename Number>
void pack_rows(const void* source, int64_t first, int64_t rows, int64_t inputs, void* packed, float* scales, int32_t* offsets,
               int threads) {
    [[maybe_unused]] const bool share = threads > 1 && rows * inputs > kWorthSharing;
#pragma omp parallel for num_threads(threads) schedule(static) if (share)
    for (int64_t panel = first / kPanel; panel <= (first + rows - 1) / kPanel; panel++)
        pack_panel<format>(static_cast<const Number*>(source), first, std::max(first, panel * kPanel),
                           std::min(first + rows, (panel + 1) * kPanel), inputs, packed, scales, offsets);
}

// Vectors of a panel that `count` tokens multiply at once: as many as the registers can hold sums for. A sum waits some four
// cycles for the multiplication before it, so one token needs many.
template <Format format>
constexpr int vectors_at_once(int count) {
    if (count == 1) return kVectors;
    int vectors = 4;
    while (vectors > 1 && (count + Arithmetic<format>::kHeld) * vectors + Arithmetic<format>::kSpare > kRegisters) vectors /= 2;
    return vectors;
}

// Bytes that a single pass fetches in advance. Narrow vectors of float32 are multiplied so fast that the processor itself reads
// ahead, better than it is told to.
template <Format format>
constexpr int64_t kAhead = kLanes == 16 ? 4096 : format != kFloat32 ? 2048 : 0;

// Words of an output that stay in the first cache while all vectors of a panel pass over them.
constexpr int64_t kWords = 64;

// Sums of a panel over the words so far.
alignas(64) thread_local float partial_sums[kBlock * kPanel];

// What becomes of the sums of a vector of outputs: y (+)= x Wᵀ + b.
template <Format format>
inline void finish(typename Arithmetic<format>::Sum sum, const Linear& linear, int64_t output, [[maybe_unused]] const float* scale,
                   float* y, bool add) {
    Vec result;
    if constexpr (format == kInt8) {
        if constexpr (kUnsignedActivations) sum -= load_words(linear.offset + output);
        result = __builtin_convertvector(sum, Vec) * load(linear.scale + output) * *scale;
    } else {
        result = sum;
    }
    if (linear.bias) result += load(linear.bias + output);
    store(y + output, add ? load(y + output) + result : result);
}

// A part of a word of each output times the activations of each token.
template <Format format, int part, int count, int vectors>
inline __attribute__((always_inline)) void add_part(typename Arithmetic<format>::Sum (&sums)[count][vectors], const char* weight,
                                                     const Word* x, int64_t stride) {
    const auto weights = [&](int v) { return Arithmetic<format>::template of<part>(load_words(weight + v * kLanes * sizeof(Word))); };
    // The fewer of both stay in registers.
    if constexpr (count < vectors) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            const Ints some = weights(v);
#pragma GCC unroll 16
            for (int token = 0; token < count; token++) Arithmetic<format>::add(sums[token][v], some, x[token * stride]);
        }
    } else {
        Ints all[vectors];
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) all[v] = weights(v);
#pragma GCC unroll 16
        for (int token = 0; token < count; token++)
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) Arithmetic<format>::add(sums[token][v], all[v], x[token * stride]);
    }
}

// `count` tokens against a panel. An output's sum runs over the inputs in one order for every count.
template <Format format, int count>
__attribute__((noinline)) void panel_product(const Linear& linear, int64_t panel, const Factors& factors, int64_t token, float* y,
                                             int64_t y_stride, bool add) {
    using Sum = typename Arithmetic<format>::Sum;
    constexpr int vectors = vectors_at_once<format>(count), passes = kVectors / vectors;
    constexpr int64_t row = kPanel * sizeof(Word), ahead = row / passes;
    const int64_t all = words(format, linear.inputs), at_once = passes > 1 ? kWords : all;
    const char* weight = static_cast<const char*>(linear.weight) + panel * all * row;
    const Word* x = factors.words + token * factors.stride;
    for (int64_t from = 0; from < all; from += at_once) {
        const int64_t to = std::min(all, from + at_once);
        for (int pass = 0; pass < passes; pass++) {
            const int64_t first = pass * vectors * kLanes;
            Sum sums[count][vectors] = {};
            if (from > 0) {
#pragma GCC unroll 16
                for (int t = 0; t < count; t++)
#pragma GCC unroll 16
                    for (int v = 0; v < vectors; v++) sums[t][v] = (Sum)load(partial_sums + t * kPanel + first + v * kLanes);
            }
            // Each of several passes brings its share of the next words, which would otherwise be waited for.
            [[maybe_unused]] const char* next = weight + (passes > 1 ? to * row + pass * kWords * ahead : kAhead<format>);
#pragma GCC unroll 1  // two words at once need more registers than there are
            for (int64_t word = from; word < to; word++) {
                if constexpr (passes > 1 || kAhead<format> > 0)
                    for (int64_t line = 0; line < ahead; line += 64) __builtin_prefetch(next + (word - from) * ahead + line);
                const char* from_here = weight + word * row + first * sizeof(Word);
                add_part<format, 0>(sums, from_here, x + word * Arithmetic<format>::kParts, factors.stride);
                if constexpr (Arithmetic<format>::kParts > 1) {
                    __asm__ volatile("" ::: "memory");  // loading the weights again is cheaper than keeping them
                    add_part<format, 1>(sums, from_here, x + word * Arithmetic<format>::kParts + 1, factors.stride);
                }
            }
            if (to < all) {
#pragma GCC unroll 16
                for (int t = 0; t < count; t++)
#pragma GCC unroll 16
                    for (int v = 0; v < vectors; v++) store(partial_sums + t * kPanel + first + v * kLanes, (Vec)sums[t][v]);
                continue;
            }
            const int64_t output = panel * kPanel + first;
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++)
#pragma GCC unroll 16
                for (int t = 0; t < count; t++)
                    finish<format>(sums[t][v], linear, output + v * kLanes, factors.scales + token + t, y + (token + t) * y_stride, add);
        }
    }
}

// One output's weights.
template <Format format>
void unpack_row(const Linear& linear, int64_t output, float* to) {
    static_assert(format != kInt8, "integers need their scale");
    for (int64_t input = 0; input < linear.inputs; input++) {
        const int64_t index = weight_index<format>(linear.inputs, output, input);
        if constexpr (format == kFloat32)
            to[input] = static_cast<const float*>(linear.weight)[index];
        else
            to[input] = widened(static_cast<const uint16_t*>(linear.weight)[index]);
    }
}

template <Format format>
void product(const Linear& linear, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t tokens, bool add, int threads) {
    const int64_t panels = padded(linear.outputs) / kPanel;
    const Factors factors = prepared<format>(x, x_stride, linear.inputs, tokens);
    [[maybe_unused]] const bool share = threads > 1 && linear.inputs * linear.outputs * tokens > kWorthSharing;
#pragma omp parallel for num_threads(threads) schedule(static) if (share)
    for (int64_t panel = 0; panel < panels; panel++) {
        int64_t token = 0;
        for (; token + kBlock <= tokens; token += kBlock) panel_product<format, kBlock>(linear, panel, factors, token, y, y_stride, add);
        switch (tokens - token) {
            case 5: panel_product<format, 5>(linear, panel, factors, token, y, y_stride, add); break;
            case 4: panel_product<format, 4>(linear, panel, factors, token, y, y_stride, add); break;
            case 3: panel_product<format, 3>(linear, panel, factors, token, y, y_stride, add); break;
            case 2: panel_product<format, 2>(linear, panel, factors, token, y, y_stride, add); break;
            case 1: panel_product<format, 1>(linear, panel, factors, token, y, y_stride, add); break;
        }
    }
}

}  // namespace
