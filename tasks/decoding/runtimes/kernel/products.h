// Matrix products: a few tokens against panels of weights, each read once.

#pragma once

#include "layout.h"
#include "vectors.h"

// Multiplications that are worth waking other threads for.
constexpr int64_t kWorthSharing = 1 << 20;

namespace {

// Vectors of a panel that `count` tokens multiply at once. A sum waits some four cycles for the multiplication before it, so few
// tokens need many vectors; many tokens need the registers for their sums, and go over the panel twice.
constexpr int vectors_at_once(int count) { return (count + 1) * kVectors < kRegisters ? kVectors : kVectors / 2; }

// `count` tokens against a panel: y (+)= x Wᵀ + b. An output's sum runs over the inputs in one order for every count.
template <Format format, int count>
void panel_product(const Linear& linear, int64_t panel, const float* x, int64_t x_stride, float* y, int64_t y_stride, bool add) {
    constexpr int vectors = vectors_at_once(count);
    for (int64_t first = 0; first < kPanel; first += vectors * kLanes) {
        Vec sums[count][vectors] = {};
        const int64_t start = panel * linear.inputs * kPanel + first;
#pragma GCC unroll 1  // two inputs at once need more registers than there are
        for (int64_t input = 0; input < linear.inputs; input++) {
            // The second half of a panel would otherwise come from memory once more, line by line.
            if constexpr (vectors < kVectors)
                __builtin_prefetch(static_cast<const char*>(linear.weight) + (start + input * kPanel + vectors * kLanes) * kBytes[format]);
            Vec row[vectors];
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) row[v] = weights<format>(linear.weight, start + input * kPanel + v * kLanes);
#pragma GCC unroll 16
            for (int token = 0; token < count; token++) {
                const float factor = x[token * x_stride + input];
#pragma GCC unroll 16
                for (int v = 0; v < vectors; v++) sums[token][v] += row[v] * factor;
            }
        }
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            const int64_t output = panel * kPanel + first + v * kLanes;
#pragma GCC unroll 16
            for (int token = 0; token < count; token++) {
                Vec result = sums[token][v];
                if (format == kInt8) result *= load(linear.scale + output);
                if (linear.bias) result += load(linear.bias + output);
                float* to = y + token * y_stride + output;
                store(to, add ? load(to) + result : result);
            }
        }
    }
}

// One output's weights, which lie a panel's width apart.
template <Format format>
void unpack_row(const Linear& linear, int64_t output, float* to) {
    static_assert(format != kInt8, "integers need their scale");
    const int64_t start = output / kPanel * kPanel * linear.inputs + output % kPanel;
    for (int64_t input = 0; input < linear.inputs; input++) {
        const int64_t index = start + input * kPanel;
        if constexpr (format == kFloat32) {
            to[input] = static_cast<const float*>(linear.weight)[index];
        } else {
            const uint32_t bits = uint32_t(static_cast<const uint16_t*>(linear.weight)[index]) << 16;
            std::memcpy(to + input, &bits, 4);
        }
    }
}

template <Format format>
void product(const Linear& linear, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t tokens, bool add, int threads) {
    const int64_t panels = padded(linear.outputs) / kPanel;
    [[maybe_unused]] const bool share = threads > 1 && linear.inputs * linear.outputs * tokens > kWorthSharing;
#pragma omp parallel for num_threads(threads) schedule(static) if (share)
    for (int64_t panel = 0; panel < panels; panel++) {
        int64_t token = 0;
        for (; token + kBlock <= tokens; token += kBlock)
            panel_product<format, kBlock>(linear, panel, x + token * x_stride, x_stride, y + token * y_stride, y_stride, add);
        const float* from = x + token * x_stride;
        float* to = y + token * y_stride;
        switch (tokens - token) {
            case 5: panel_product<format, 5>(linear, panel, from, x_stride, to, y_stride, add); break;
            case 4: panel_product<format, 4>(linear, panel, from, x_stride, to, y_stride, add); break;
            case 3: panel_product<format, 3>(linear, panel, from, x_stride, to, y_stride, add); break;
            case 2: panel_product<format, 2>(linear, panel, from, x_stride, to, y_stride, add); break;
            case 1: panel_product<format, 1>(linear, panel, from, x_stride, to, y_stride, add); break;
        }
    }
}

}  // namespace
