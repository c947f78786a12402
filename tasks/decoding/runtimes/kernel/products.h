// Matrix products: a few tokens against panels of weights, each read once.

#pragma once

#include "layout.h"
#include "vectors.h"

// Multiplications that are worth waking other threads for.
constexpr int64_t kWorthSharing = 1 << 20;

namespace {

// `count` rows of y (+)= x Wᵀ + b for one panel: the sum over inputs runs in one order for every count.
template <Format format, int count>
void panel_product(const Linear& linear, int64_t panel, const float* x, int64_t x_stride, float* y, int64_t y_stride, bool add) {
    Vec sums[count][kVectors] = {};
    const int64_t start = panel * linear.inputs * kPanel;
    for (int64_t input = 0; input < linear.inputs; input++) {
        Vec row[kVectors];
        for (int v = 0; v < kVectors; v++) row[v] = weights<format>(linear.weight, start + input * kPanel + v * kLanes);
        for (int token = 0; token < count; token++) {
            const float factor = x[token * x_stride + input];
            for (int v = 0; v < kVectors; v++) sums[token][v] += row[v] * factor;
        }
    }
    for (int v = 0; v < kVectors; v++) {
        const int64_t output = panel * kPanel + v * kLanes;
        for (int token = 0; token < count; token++) {
            Vec result = sums[token][v];
            if (format == kInt8) result *= load(linear.scale + output);
            if (linear.bias) result += load(linear.bias + output);
            float* to = y + token * y_stride + output;
            store(to, add ? load(to) + result : result);
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
