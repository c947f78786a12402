// Matrix products: a few tokens against panels of weights, each read once.

#pragma once

#include "layout.h"
#include "vectors.h"

// Multiplications that are worth waking other threads for.
constexpr int64_t kWorthSharing = 1 << 20;

// Panels that one token multiplies at once, so that enough sums run side by side.
constexpr int kPanelsAtOnce = 2;

namespace {

// Tokens against `panels` consecutive panels: y (+)= x Wᵀ + b. An output's sum runs over the inputs in one order for every count.
// A sum waits some four cycles for the multiplication before it, so one token needs several panels at once.
template <Format format, int count, int panels>
void panel_product(const Linear& linear, int64_t panel, const float* x, int64_t x_stride, float* y, int64_t y_stride, bool add) {
    Vec sums[count][panels * kVectors] = {};
    const int64_t panel_size = linear.inputs * kPanel, start = panel * panel_size;
#pragma GCC unroll 1  // two inputs at once need more registers than there are
    for (int64_t input = 0; input < linear.inputs; input++) {
        Vec row[panels * kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < panels * kVectors; v++)
            row[v] = weights<format>(linear.weight, start + v / kVectors * panel_size + input * kPanel + v % kVectors * kLanes);
#pragma GCC unroll 16
        for (int token = 0; token < count; token++) {
            const float factor = x[token * x_stride + input];
#pragma GCC unroll 16
            for (int v = 0; v < panels * kVectors; v++) sums[token][v] += row[v] * factor;
        }
    }
#pragma GCC unroll 16
    for (int v = 0; v < panels * kVectors; v++) {
        const int64_t output = panel * kPanel + v * kLanes;
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

// Any number of tokens against `panels` consecutive panels.
template <Format format, int panels>
void tokens_product(const Linear& linear, int64_t panel, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t tokens,
                    bool add) {
    if constexpr (panels > 1) {
        if (tokens == 1) return panel_product<format, 1, panels>(linear, panel, x, x_stride, y, y_stride, add);
        for (int each = 0; each < panels; each++)
            tokens_product<format, 1>(linear, panel + each, x, x_stride, y, y_stride, tokens, add);
    } else {
        int64_t token = 0;
        for (; token + kBlock <= tokens; token += kBlock)
            panel_product<format, kBlock, 1>(linear, panel, x + token * x_stride, x_stride, y + token * y_stride, y_stride, add);
        const float* from = x + token * x_stride;
        float* to = y + token * y_stride;
        switch (tokens - token) {
            case 5: return panel_product<format, 5, 1>(linear, panel, from, x_stride, to, y_stride, add);
            case 4: return panel_product<format, 4, 1>(linear, panel, from, x_stride, to, y_stride, add);
            case 3: return panel_product<format, 3, 1>(linear, panel, from, x_stride, to, y_stride, add);
            case 2: return panel_product<format, 2, 1>(linear, panel, from, x_stride, to, y_stride, add);
            case 1: return panel_product<format, 1, 1>(linear, panel, from, x_stride, to, y_stride, add);
        }
    }
}

template <Format format>
void product(const Linear& linear, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t tokens, bool add, int threads) {
    const int64_t panels = padded(linear.outputs) / kPanel;
    [[maybe_unused]] const bool share = threads > 1 && linear.inputs * linear.outputs * tokens > kWorthSharing;
#pragma omp parallel for num_threads(threads) schedule(static) if (share)
    for (int64_t some = 0; some < panels / kPanelsAtOnce; some++)
        tokens_product<format, kPanelsAtOnce>(linear, some * kPanelsAtOnce, x, x_stride, y, y_stride, tokens, add);
    for (int64_t panel = panels / kPanelsAtOnce * kPanelsAtOnce; panel < panels; panel++)
        tokens_product<format, 1>(linear, panel, x, x_stride, y, y_stride, tokens, add);
}

}  // namespace
