// A transformer stack on a CPU: what `native.py` calls, one call a run of the model.
//
// At the sizes of drafters a framework spends its time between operations, not in them. Here a run is one function call, and
// each number is summed in one order, whatever is computed beside it: a token's logits are the same, to the bit, one at a
// time, in a block that is verified, and in a batch.
//
// Matrices lie in panels of `kPanel` outputs, (panels, inputs, kPanel), zero beyond the last output, so that a product reads
// them in one stream. Keys lie (head, width, position), so that all scores of a query are computed side by side.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector is passed between libraries
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of the header's own
#endif
#if defined(__AVX2__)
#include <immintrin.h>  // compilers widen bytes badly
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16, kVectors = 4, kBlock = 6;
#else
constexpr int kLanes = 8, kVectors = 2, kBlock = 6;
#endif
constexpr int kPanel = kLanes * kVectors;
// Tokens that go through the layers together: enough to reuse what was read, few enough to stay in cache.
constexpr int kTogether = 256;
// Multiplications that are worth waking other threads for.
constexpr int64_t kWorthSharing = 1 << 20;

typedef float Vec __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2), aligned(2)));
typedef int8_t Bytes __attribute__((vector_size(kLanes), aligned(1)));

enum Format { kFloat32, kBfloat16, kInt8 };
enum Activation { kRelu, kGelu, kGeluNew, kSilu };

extern "C" {

struct Linear {
    const void* weight;
    const float* scale;  // of each output, where weights are integers
    const float* bias;
    int64_t inputs, outputs;
};

struct Norm {
    const float *weight, *bias;
};

struct Layer {
    Norm norm;
    Linear query_key_value, out;
    Norm cross_norm;
    Linear cross_query, cross_key_value, cross_out;
    Norm feed_norm;
    Linear feed_in, feed_out;
};

struct Stack {
    int32_t layers, width, heads, key_value_heads, head_width, activation, gated, causal, format, threads;
    float epsilon, score_scale, head_scale;
    const Layer* layer;
    const float *embedding, *learned_positions;
    Norm norm;
    Linear head;
};

// Keys and values of `slots` texts of up to `capacity` tokens, and of the sources that they are read against.
struct Cache {
    float *keys, *values;
    int64_t layer_stride, slots, capacity;
    float *cross_keys, *cross_values;
    int64_t source_capacity;
    const int32_t* source_lengths;  // of each slot
    const float* bias;              // (heads, 2 capacity + 1), by distance
    const float *cosines, *sines;   // (capacity, head width)
};

// New tokens, row after row: the row `r` has those from `begin[r]` to `begin[r + 1]`, after `cached[r]` in its slot.
struct Rows {
    int64_t rows;
    const int32_t *tokens, *begin, *cached, *slots;
};
}

namespace {

inline int64_t padded(int64_t count) { return (count + kPanel - 1) / kPanel * kPanel; }

inline Vec load(const float* from) {
    Vec loaded;
    std::memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

inline void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }

template <Format format>
inline Vec weights(const void* base, int64_t index) {
    if constexpr (format == kFloat32) {
        return load(static_cast<const float*>(base) + index);
    } else if constexpr (format == kBfloat16) {
        Halves halves;
        std::memcpy(&halves, static_cast<const uint16_t*>(base) + index, sizeof halves);
        Ints bits = __builtin_convertvector(halves, Ints) << 16;
        return (Vec)bits;  // the same bits
    } else {
        Bytes bytes;
        std::memcpy(&bytes, static_cast<const int8_t*>(base) + index, sizeof bytes);
#if defined(__AVX512F__)
        return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)bytes));
#elif defined(__AVX2__)
        return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&bytes))));
#else
        return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Vec);
#endif
    }
}

// e^x to about 2 units in the last place; 0 below the smallest normal number.
inline Vec exponential(Vec x) {
    const Vec magic = Vec{} + 12582912.0f;  // 1.5 2^23: adding it rounds to an integer
    Vec bounded = x < -87.0f ? Vec{} - 87.0f : x;
    bounded = bounded > 88.0f ? Vec{} + 88.0f : bounded;
    const Vec turns = bounded * 1.44269504f + magic;
    const Vec whole = turns - magic;
    Vec rest = bounded - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    Vec sum = Vec{} + 1.9875691500e-4f;
    for (float coefficient : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        sum = sum * rest + coefficient;
    sum = sum * rest * rest + rest + 1.0f;
    Ints bits = (__builtin_convertvector(whole, Ints) + 127) << 23;
    const Vec scaled = sum * (Vec)bits;
    return x < -87.0f ? Vec{} : scaled;
}

inline float total(Vec value) {
    float sum = 0;
    for (int lane = 0; lane < kLanes; lane++) sum += value[lane];
    return sum;
}

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

// Activations of the tokens that go through together; rows are padded to whole panels.
struct Scratch {
    std::vector<float> hidden, normed, projected, attended, fed;
    int64_t narrow = 0, wide = 0, inner = 0, feed = 0;

    void fit(const Stack& stack, int64_t tokens) {
        const Layer& layer = stack.layer[0];
        narrow = padded(stack.width);
        wide = std::max(padded(layer.query_key_value.outputs), padded(layer.cross_key_value.outputs));
        inner = padded(stack.heads * stack.head_width);
        feed = padded(layer.feed_in.outputs);
        hidden.resize(std::max<size_t>(hidden.size(), tokens * narrow));
        normed.resize(std::max<size_t>(normed.size(), tokens * narrow));
        projected.resize(std::max<size_t>(projected.size(), tokens * wide));
        attended.resize(std::max<size_t>(attended.size(), tokens * inner));
        fed.resize(std::max<size_t>(fed.size(), tokens * feed));
    }
};

void normalise(const Norm& norm, float epsilon, const float* x, float* y, int64_t width, float scale = 1.0f) {
    const int64_t whole = width / kLanes * kLanes;
    float mean = 0;
    if (norm.bias) {
        Vec sums{};
        for (int64_t i = 0; i < whole; i += kLanes) sums += load(x + i);
        mean = total(sums);
        for (int64_t i = whole; i < width; i++) mean += x[i];
        mean /= width;
    }
    Vec sums{};
    for (int64_t i = 0; i < whole; i += kLanes) {
        const Vec centred = load(x + i) - mean;
        sums += centred * centred;
    }
    float squares = total(sums);
    for (int64_t i = whole; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / std::sqrt(squares / width + epsilon);
    for (int64_t i = 0; i < width; i++)
        y[i] = ((x[i] - mean) * factor * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f)) * scale;
}

inline Vec activated(Vec x, int activation) {
    switch (activation) {
        case kRelu: return x > 0.0f ? x : Vec{};
        case kSilu: return x / (1.0f + exponential(-x));
        case kGeluNew: return x / (1.0f + exponential(-1.5957691216f * (x + 0.044715f * x * x * x)));
        default: {
            Vec result;
            for (int lane = 0; lane < kLanes; lane++) result[lane] = 0.5f * x[lane] * (1.0f + std::erf(x[lane] * 0.7071067812f));
            return result;
        }
    }
}

void activate(const Stack& stack, float* x, int64_t count) {
    if (!stack.gated) {
        for (int64_t i = 0; i < count; i += kLanes) store(x + i, activated(load(x + i), stack.activation));
        return;
    }
    const int64_t half = count / 2;
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) store(x + i, activated(load(x + i), stack.activation) * load(x + half + i));
    if (i < half) {
        Vec gate{}, value{};
        std::memcpy(&gate, x + i, (half - i) * 4);
        std::memcpy(&value, x + half + i, (half - i) * 4);
        const Vec result = activated(gate, stack.activation) * value;
        std::memcpy(x + i, &result, (half - i) * 4);
    }
}

// Sums of four chains, each of every fourth term: one chain would wait for itself.
constexpr int kChains = 4;

inline Vec joined(const Vec* chains) { return (chains[0] + chains[1]) + (chains[2] + chains[3]); }

// `kLanes` scores: the query against as many keys.
inline Vec score(const float* query, const float* keys, int64_t capacity, int64_t width) {
    Vec chains[kChains] = {};
    int64_t d = 0;
    for (; d + kChains <= width; d += kChains)
        for (int chain = 0; chain < kChains; chain++) chains[chain] += load(keys + (d + chain) * capacity) * query[d + chain];
    for (; d < width; d++) chains[0] += load(keys + d * capacity) * query[d];
    return joined(chains);
}

// `kLanes` of the result: the values, weighted.
inline Vec weigh(const float* shares, const float* values, int64_t reach, int64_t width) {
    Vec chains[kChains] = {};
    int64_t j = 0;
    for (; j + kChains <= reach; j += kChains)
        for (int chain = 0; chain < kChains; chain++) chains[chain] += load(values + (j + chain) * width) * shares[j + chain];
    for (; j < reach; j++) chains[0] += load(values + j * width) * shares[j];
    return joined(chains);
}

// One head of one query over `reach` keys; `scores` has room for whole vectors.
void attend(const float* query, const float* keys, const float* values, const float* bias, int64_t reach, int64_t capacity,
            int64_t width, float scale, float* scores, float* result) {
    const int64_t whole = (reach + kLanes - 1) / kLanes * kLanes;
    for (int64_t j = 0; j < whole; j += kLanes) store(scores + j, score(query, keys + j, capacity, width) * scale);
    if (bias)
        for (int64_t j = 0; j < reach; j++) scores[j] += bias[j];
    for (int64_t j = reach; j < whole; j++) scores[j] = -INFINITY;
    Vec tops = Vec{} - INFINITY;
    for (int64_t j = 0; j < whole; j += kLanes) {
        const Vec some = load(scores + j);
        tops = some > tops ? some : tops;
    }
    float top = tops[0];
    for (int lane = 1; lane < kLanes; lane++) top = std::max(top, tops[lane]);
    Vec sums{};
    for (int64_t j = 0; j < whole; j += kLanes) {
        const Vec raised = exponential(load(scores + j) - top);
        store(scores + j, raised);
        sums += raised;
    }
    const float factor = 1.0f / total(sums);
    int64_t d = 0;
    for (; d + kLanes <= width; d += kLanes) store(result + d, weigh(scores, values + d, reach, width) * factor);
    for (; d < width; d++) {
        float sum = 0;
        for (int64_t j = 0; j < reach; j++) sum += scores[j] * values[j * width + d];
        result[d] = sum * factor;
    }
}

void turn(float* x, const float* cosines, const float* sines, int64_t width) {
    for (int64_t d = 0; d < width / 2; d++) {
        const float one = x[d], other = x[d + width / 2];
        x[d] = one * cosines[d] - other * sines[d];
        x[d + width / 2] = other * cosines[d + width / 2] + one * sines[d + width / 2];
    }
}

void remember(float* keys, float* values, const float* key, const float* value, int64_t heads, int64_t width, int64_t capacity,
              int64_t position) {
    for (int64_t head = 0; head < heads; head++) {
        for (int64_t d = 0; d < width; d++) keys[(head * width + d) * capacity + position] = key[head * width + d];
        std::memcpy(values + (head * capacity + position) * width, value + head * width, width * 4);
    }
}

struct Place {
    int64_t slot, position, source;
};

template <Format format>
void self_attention(const Stack& stack, const Cache& cache, int index, const std::vector<Place>& places, Scratch& scratch,
                    int64_t length, int threads) {
    const Layer& layer = stack.layer[index];
    const int64_t width = stack.head_width, group = stack.heads / stack.key_value_heads, tokens = places.size();
    const int64_t slot_stride = stack.key_value_heads * width * cache.capacity;
    product<format>(layer.query_key_value, scratch.normed.data(), scratch.narrow, scratch.projected.data(), scratch.wide, tokens,
                    false, threads);
    float* all_keys = cache.keys + index * cache.layer_stride;
    float* all_values = cache.values + index * cache.layer_stride;
    for (int64_t token = 0; token < tokens; token++) {
        float* query = scratch.projected.data() + token * scratch.wide;
        float* key = query + stack.heads * width;
        const Place place = places[token];
        if (cache.cosines) {
            const float *cosines = cache.cosines + place.position * width, *sines = cache.sines + place.position * width;
            for (int64_t head = 0; head < stack.heads + stack.key_value_heads; head++) turn(query + head * width, cosines, sines, width);
        }
        remember(all_keys + place.slot * slot_stride, all_values + place.slot * slot_stride, key,
                 key + stack.key_value_heads * width, stack.key_value_heads, width, cache.capacity, place.position);
    }
    thread_local std::vector<float> scores;
    scores.resize(std::max<size_t>(scores.size(), cache.capacity + kLanes));
    for (int64_t token = 0; token < tokens; token++) {
        const Place place = places[token];
        const int64_t reach = stack.causal ? place.position + 1 : length;
        for (int64_t head = 0; head < stack.heads; head++) {
            const int64_t at = place.slot * slot_stride + head / group * width * cache.capacity;
            const float* bias = cache.bias ? cache.bias + head * (2 * cache.capacity + 1) + cache.capacity - place.position : nullptr;
            attend(scratch.projected.data() + token * scratch.wide + head * width, all_keys + at, all_values + at, bias, reach,
                   cache.capacity, width, stack.score_scale, scores.data(), scratch.attended.data() + token * scratch.inner + head * width);
        }
    }
    product<format>(layer.out, scratch.attended.data(), scratch.inner, scratch.hidden.data(), scratch.narrow, tokens, true, threads);
}

template <Format format>
void cross_attention(const Stack& stack, const Cache& cache, int index, const std::vector<Place>& places, Scratch& scratch, int threads) {
    const Layer& layer = stack.layer[index];
    const int64_t width = stack.head_width, tokens = places.size();
    const int64_t slot_stride = stack.heads * width * cache.source_capacity;
    product<format>(layer.cross_query, scratch.normed.data(), scratch.narrow, scratch.projected.data(), scratch.wide, tokens, false,
                    threads);
    thread_local std::vector<float> scores;
    scores.resize(std::max<size_t>(scores.size(), cache.source_capacity + kLanes));
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t head = 0; head < stack.heads; head++) {
            const int64_t at = (index * cache.slots + places[token].slot) * slot_stride + head * width * cache.source_capacity;
            attend(scratch.projected.data() + token * scratch.wide + head * width, cache.cross_keys + at, cache.cross_values + at,
                   nullptr, places[token].source, cache.source_capacity, width, stack.score_scale, scores.data(),
                   scratch.attended.data() + token * scratch.inner + head * width);
        }
    product<format>(layer.cross_out, scratch.attended.data(), scratch.inner, scratch.hidden.data(), scratch.narrow, tokens, true,
                    threads);
}

void normalise_all(const Stack& stack, const Norm& norm, Scratch& scratch, int64_t tokens) {
    for (int64_t token = 0; token < tokens; token++)
        normalise(norm, stack.epsilon, scratch.hidden.data() + token * scratch.narrow, scratch.normed.data() + token * scratch.narrow,
                  stack.width);
}

void embed(const Stack& stack, const int32_t* tokens, const std::vector<Place>& places, Scratch& scratch) {
    for (size_t token = 0; token < places.size(); token++) {
        const float* from = stack.embedding + int64_t(tokens[token]) * stack.width;
        float* to = scratch.hidden.data() + token * scratch.narrow;
        std::copy(from, from + stack.width, to);
        std::fill(to + stack.width, to + scratch.narrow, 0.0f);
        if (stack.learned_positions) {
            const float* position = stack.learned_positions + places[token].position * stack.width;
            for (int64_t i = 0; i < stack.width; i++) to[i] += position[i];
        }
    }
}

// All layers for consecutive new tokens; the last hidden state, normed, goes to `result` (tokens, width).
template <Format format>
void run_layers(const Stack& stack, const Cache& cache, const int32_t* tokens, const std::vector<Place>& places, int64_t length,
                float* result, int threads) {
    thread_local Scratch scratch;
    const int64_t count = places.size();
    scratch.fit(stack, count);
    embed(stack, tokens, places, scratch);
    for (int index = 0; index < stack.layers; index++) {
        const Layer& layer = stack.layer[index];
        normalise_all(stack, layer.norm, scratch, count);
        self_attention<format>(stack, cache, index, places, scratch, length, threads);
        if (layer.cross_query.weight) {
            normalise_all(stack, layer.cross_norm, scratch, count);
            cross_attention<format>(stack, cache, index, places, scratch, threads);
        }
        normalise_all(stack, layer.feed_norm, scratch, count);
        product<format>(layer.feed_in, scratch.normed.data(), scratch.narrow, scratch.fed.data(), scratch.feed, count, false, threads);
        for (int64_t token = 0; token < count; token++)
            activate(stack, scratch.fed.data() + token * scratch.feed, layer.feed_in.outputs);
        product<format>(layer.feed_out, scratch.fed.data(), scratch.feed, scratch.hidden.data(), scratch.narrow, count, true, threads);
    }
    for (int64_t token = 0; token < count; token++)
        normalise(stack.norm, stack.epsilon, scratch.hidden.data() + token * scratch.narrow, result + token * stack.width, stack.width);
}

// Rows [from, to), as many at a time as go through together; a bidirectional row goes whole.
template <Format format>
void run_rows(const Stack& stack, const Cache& cache, const Rows& rows, int64_t from, int64_t to, float* result, int threads) {
    std::vector<Place> places;
    int64_t first = rows.begin[from];
    for (int64_t row = from; row < to; row++) {
        const int64_t count = rows.begin[row + 1] - rows.begin[row], slot = rows.slots[row];
        const int64_t source = cache.source_lengths ? cache.source_lengths[slot] : 0;
        for (int64_t token = 0; token < count; token++) places.push_back({slot, rows.cached[row] + token, source});
        const bool full = !stack.causal || int64_t(places.size()) >= kTogether || row + 1 == to;
        if (full && !places.empty()) {
            run_layers<format>(stack, cache, rows.tokens + first, places, count, result + first * stack.width, threads);
            first += places.size();
            places.clear();
        }
    }
}

template <Format format>
void run_all(const Stack& stack, const Cache& cache, const Rows& rows, float* result) {
    const Layer& layer = stack.layer[0];
    const int64_t matrices = layer.query_key_value.inputs * layer.query_key_value.outputs + 2 * layer.feed_in.inputs * layer.feed_in.outputs;
    const int64_t groups = std::min<int64_t>(stack.threads, rows.rows);
    if (groups <= 1 || rows.begin[rows.rows] * stack.layers * matrices <= kWorthSharing) {
        run_rows<format>(stack, cache, rows, 0, rows.rows, result, stack.threads);
        return;
    }
#pragma omp parallel for num_threads(groups) schedule(static)
    for (int64_t group = 0; group < groups; group++)
        run_rows<format>(stack, cache, rows, rows.rows * group / groups, rows.rows * (group + 1) / groups, result, 1);
}


// Keys and values of one source (length, width) in every layer of the decoder.
template <Format format>
void read_source(const Stack& stack, const Cache& cache, const float* hidden, int64_t length, int64_t slot, int threads) {
    thread_local std::vector<float> projected;
    const int64_t width = stack.head_width, slot_stride = stack.heads * width * cache.source_capacity;
    const int64_t stride = padded(stack.layer[0].cross_key_value.outputs);
    projected.resize(std::max<size_t>(projected.size(), length * stride));
    for (int index = 0; index < stack.layers; index++) {
        product<format>(stack.layer[index].cross_key_value, hidden, stack.width, projected.data(), stride, length, false, threads);
        const int64_t at = (index * cache.slots + slot) * slot_stride;
        for (int64_t position = 0; position < length; position++) {
            const float* key = projected.data() + position * stride;
            remember(cache.cross_keys + at, cache.cross_values + at, key, key + stack.heads * width, stack.heads, width,
                     cache.source_capacity, position);
        }
    }
}

template <Format format>
void read_sources(const Stack& stack, const Cache& cache, const float* hidden, int64_t sources, int64_t longest) {
    const Linear& linear = stack.layer[0].cross_key_value;
    const bool share = sources > 1 && stack.threads > 1 && sources * longest * linear.inputs * linear.outputs > kWorthSharing;
#pragma omp parallel for num_threads(stack.threads) schedule(static) if (share)
    for (int64_t slot = 0; slot < sources; slot++)
        read_source<format>(stack, cache, hidden + slot * longest * stack.width, cache.source_lengths[slot], slot,
                            share ? 1 : stack.threads);
}

template <Format format>
void predict(const Stack& stack, const float* hidden, int64_t tokens, float* logits, int64_t stride) {
    thread_local std::vector<float> scaled;
    if (stack.head_scale != 1.0f) {
        scaled.assign(hidden, hidden + tokens * stack.width);
        for (float& one : scaled) one *= stack.head_scale;
        hidden = scaled.data();
    }
    product<format>(stack.head, hidden, stack.width, logits, stride, tokens, false, stack.threads);
}

// The first of the greatest logits; -1 where there is NaN, +infinity or no finite logit.
int32_t likeliest(const float* logits, int64_t vocabulary) {
    Vec tops = Vec{} - INFINITY;
    Ints odd{};
    const int64_t whole = vocabulary / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) {
        const Vec some = load(logits + i);
        odd |= some != some;
        tops = some > tops ? some : tops;
    }
    float top = -INFINITY;
    bool broken = false;
    for (int lane = 0; lane < kLanes; lane++) {
        top = std::max(top, tops[lane]);
        broken |= odd[lane] != 0;
    }
    for (int64_t i = whole; i < vocabulary; i++) {
        top = std::max(top, logits[i]);
        broken |= std::isnan(logits[i]);
    }
    if (broken || !std::isfinite(top)) return -1;
    return std::find(logits, logits + vocabulary, top) - logits;
}

// The softmax of the greatest logit.
float confidence(const float* logits, int64_t vocabulary, float top) {
    Vec sums{};
    const int64_t whole = vocabulary / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) sums += exponential(load(logits + i) - top);
    float sum = total(sums);
    for (int64_t i = whole; i < vocabulary; i++) sum += std::exp(logits[i] - top);
    return 1.0f / sum;
}

template <typename Run>
auto with_format(int format, Run run) {
    switch (format) {
        case kBfloat16: return run(std::integral_constant<Format, kBfloat16>{});
        case kInt8: return run(std::integral_constant<Format, kInt8>{});
        default: return run(std::integral_constant<Format, kFloat32>{});
    }
}

}  // namespace

extern "C" {

int64_t draftline_panel() { return kPanel; }

// Runs the layers over new tokens; `hidden` (new tokens, width).
void draftline_run(const Stack* stack, const Cache* cache, const Rows* rows, float* hidden) {
    with_format(stack->format, [&](auto format) { run_all<format()>(*stack, *cache, *rows, hidden); });
}

// Keeps what `sources` encoded texts (sources, longest, width) are read by, in slots of the same numbers.
void draftline_read(const Stack* stack, const Cache* cache, const float* hidden, int64_t sources, int64_t longest) {
    with_format(stack->format, [&](auto format) { read_sources<format()>(*stack, *cache, hidden, sources, longest); });
}

// Logits (tokens, stride) of last hidden states (tokens, width), and the likeliest of `vocabulary` tokens at each; -1: broken.
void draftline_predict(const Stack* stack, const float* hidden, int64_t tokens, float* logits, int64_t stride, int64_t vocabulary,
                       int32_t* best) {
    with_format(stack->format, [&](auto format) { predict<format()>(*stack, hidden, tokens, logits, stride); });
    for (int64_t token = 0; token < tokens; token++) best[token] = likeliest(logits + token * stride, vocabulary);
}

// Continues one row greedily: at most `budget` tokens, until one whose confidence is not above `floor`, one with which the
// product of confidences falls under `trust_floor`, or one of `ends`. Gives how many positions were predicted; the last one's
// token is not fed. `logits` (budget, stride); `hidden` (tokens of the row, width), room for one run; `best`, `confident`
// (budget).
int64_t draftline_extend(const Stack* stack, const Cache* cache, const Rows* rows, int64_t budget, double floor, double trust_floor,
                         const int32_t* ends, int64_t end_count, float* hidden, float* logits, int64_t stride, int64_t vocabulary, int32_t* best,
                         double* confident) {
    const bool asked = floor > 0 || trust_floor > 0;
    double trust = 1;
    int32_t begin[2] = {0, rows->begin[1]}, cached = rows->cached[0];
    Rows next = *rows;
    next.begin = begin;
    next.cached = &cached;
    for (int64_t place = 0; place < budget; place++) {
        draftline_run(stack, cache, &next, hidden);
        float* here = logits + place * stride;
        draftline_predict(stack, hidden + (begin[1] - 1) * stack->width, 1, here, stride, vocabulary, best + place);
        if (best[place] < 0) return place + 1;
        confident[place] = asked ? confidence(here, vocabulary, here[best[place]]) : 1;
        trust *= confident[place];
        const bool ended = std::find(ends, ends + end_count, best[place]) != ends + end_count;
        if (ended || confident[place] <= floor || trust < trust_floor) return place + 1;
        cached += begin[1];
        begin[1] = 1;
        next.tokens = best + place;
    }
    return budget;
}

// Runs one row over its new tokens, of which the last `drafted` are a draft, and checks that: a token is kept while its -log
// softmax is at most `threshold`, or, where `agreed`, while it is the likeliest. Gives how many are; `best` (drafted + 1) holds
// what follows each of them, the token that replaces the first one not kept included; -1: broken.
int64_t draftline_check(const Stack* stack, const Cache* cache, const Rows* rows, int64_t drafted, double threshold, int32_t agreed,
                        float* hidden, float* logits, int64_t stride, int64_t vocabulary, int32_t* best) {
    draftline_run(stack, cache, rows, hidden);
    const int64_t before = rows->begin[1] - drafted - 1;
    const int32_t* draft = rows->tokens + before + 1;
    draftline_predict(stack, hidden + before * stack->width, drafted + 1, logits, stride, vocabulary, best);
    for (int64_t place = 0; place < drafted; place++) {
        const float* here = logits + place * stride;
        if (best[place] < 0 || (agreed && best[place] == draft[place])) continue;
        const float top = here[best[place]];
        const double certain = confidence(here, vocabulary, top) * std::exp(here[draft[place]] - top);
        if (!(-std::log(certain) <= threshold)) return place;
    }
    return drafted;
}
}
