// Matrices as `products.h` reads them: rows of outputs become panels, in the number format of the product.

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

}  // namespace
