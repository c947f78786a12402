// A transformer stack on a CPU: the functions that Python calls, one call a run of a model or a text.
//
// At the sizes of drafters a framework spends its time between operations, not in them. Here a run is one function call, and
// each number is summed in one order, whatever is computed beside it: a token's logits are the same, to the bit, one at a
// time, in a block that is verified, and in a batch.
//
// Matrices lie in panels of `kPanel` outputs and words of 32 bits, (panels, words, kPanel), zero beyond the last output and
// input, so that a product reads them in one stream. Keys lie (head, width, position), so that all scores of a query are computed side by side.

#include "speculative_loop.h"

extern "C" {

int64_t draftline_panel() { return kPanel; }

// Packs `rows` outputs of a matrix, from the output `first` on, into its panels: `source` (rows, inputs) in float32 or bfloat16.
// `packed` must hold zeros beyond the matrix. `scales` and `offsets` (outputs) are written for int8 alone; `offsets` must hold zeros.
void draftline_pack(int32_t format, int32_t source_format, const void* source, int64_t first, int64_t rows, int64_t inputs,
                    void* packed, float* scales, int32_t* offsets, int32_t threads) {
    with_format(format, [&](auto to) {
        const auto pack = source_format == kBfloat16 ? pack_rows<to(), uint16_t> : pack_rows<to(), float>;
        pack(source, first, rows, inputs, packed, scales, offsets, threads);
    });
}

// Runs the layers over new tokens; `hidden` (new tokens, width).
void draftline_run(const Stack* stack, const Cache* cache, const RowBatch* rows, float* hidden) {
    run_stack(*stack, *cache, *rows, hidden);
}

// Keeps what `sources` encoded texts (sources, longest, width) are read by, in slots of the same numbers.
void draftline_read(const Stack* stack, const Cache* cache, const float* hidden, int64_t sources, int64_t longest) {
    with_format(stack->format, [&](auto format) { read_sources<format()>(*stack, *cache, hidden, sources, longest); });
}

// Logits (tokens, stride) of last hidden states (tokens, width), and the token of the greatest of `vocabulary` outputs at each; -1:
// broken.
void draftline_predict(const Stack* stack, const float* hidden, int64_t tokens, float* logits, int64_t stride, int64_t vocabulary,
                       int32_t* best) {
    predict_outputs(*stack, hidden, tokens, logits, stride, vocabulary, best);
    for (int64_t token = 0; token < tokens; token++) best[token] = token_of(*stack, best[token]);
}

// Continues one row greedily: at most `budget` tokens, until `DraftStops` stops it. Gives how many positions were predicted; the last one's
// token is not fed. `logits` (budget, stride); `hidden` (tokens of the row, width), a buffer for one run; `best`,
// `confidences`, `entropies` (budget); the last may be null.
int64_t draftline_continue(const Stack* stack, const Cache* cache, const RowBatch* rows, int64_t budget, double fallback_threshold, double stop_below,
                         double max_entropy, const int32_t* ends, int64_t end_count, float* hidden, float* logits, int64_t stride, int64_t vocabulary, int32_t* best,
                         double* confidences, double* entropies) {
    const DraftStops stops{fallback_threshold, stop_below, max_entropy, ends, end_count};
    double cumulative = 1;
    int32_t begin[2] = {0, rows->begin[1]}, cached = rows->cached[0];
    RowBatch next = *rows;
    next.begin = begin;
    next.cached = &cached;
    for (int64_t index = 0; index < budget; index++) {
        draftline_run(stack, cache, &next, hidden);
        float* here = logits + index * stride;
        predict_outputs(*stack, hidden + (begin[1] - 1) * stack->width, 1, here, stride, vocabulary, best + index);
        if (best[index] < 0) return index + 1;
        confidences[index] = stops.reads_scores() ? confidence(here, vocabulary, here[best[index]]) : 1;
        const double nats = stops.reads_entropy() ? entropy(here, vocabulary, here[best[index]]) : 0;
        if (entropies) entropies[index] = nats;
        best[index] = token_of(*stack, best[index]);
        if (stops.after(best[index], confidences[index], nats, cumulative)) return index + 1;
        cached += begin[1];
        begin[1] = 1;
        next.tokens = best + index;
    }
    return budget;
}

// Runs one row over its new tokens, of which the last `drafted` are a draft, and checks that by `rule`. Gives how many are kept;
// `best` (drafted + 1) holds what follows each of them, the token that replaces the first one not kept included; -1: broken. The
// head is a whole one: a token without an output would have no logit.
int64_t draftline_check_draft(const Stack* stack, const Cache* cache, const RowBatch* rows, int64_t drafted, const Acceptance* rule,
                              float* hidden, float* logits, int64_t stride, int64_t vocabulary, int32_t* best) {
    draftline_run(stack, cache, rows, hidden);
    const int64_t before = rows->begin[1] - drafted - 1;
    const int32_t* draft = rows->tokens + before + 1;
    draftline_predict(stack, hidden + before * stack->width, drafted + 1, logits, stride, vocabulary, best);
    return count_kept(*rule, logits, stride, vocabulary, best, draft, drafted);
}

// Makes room for the predictions of a model, for `LoopModel.kept`; `draftline_drop` frees it.
void* draftline_keep() { return new Kept; }
void draftline_drop(void* kept) { delete static_cast<Kept*>(kept); }

// Takes at most `turns` turns of each row whose text has not ended: texts that end, or have `limit` tokens behind their prompts, leave.
// Returns `count`; where logits are broken, the row in which they are, whose last turn's `verified` is 1 where they are the large model's;
// `count + 1` where all of the `flags`, which other threads may set, were set on the way.
int64_t draftline_take_turns(const LoopModel* small, const LoopModel* large, const LoopRules* rules, LoopRow* given, int64_t count,
                             int64_t turns, const int32_t* const* flags, int64_t flag_count) {
    std::vector<Row> rows;
    for (int64_t slot = 0; slot < count; slot++)
        if (!given[slot].ended) rows.emplace_back(given[slot], slot);
    Rows going;
    for (Row& row : rows) going.push_back(&row);
    const auto set = [](const int32_t* flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED) != 0; };
    SpeculativeLoop loop{*small, *large, *rules};
    for (int64_t turn = 0; turn < turns && !going.empty(); turn++) {
        if (flag_count && std::all_of(flags, flags + flag_count, set)) return count + 1;
        if (const Row* broken = loop.take_turns(going)) return broken->slot;
    }
    return count;
}

// Reads `count` floats `passes` times with `threads` threads, each its own part; the sum goes to `result`.
void draftline_read_memory(const float* data, int64_t count, int64_t passes, int32_t threads, float* result) {
    constexpr int64_t kStride = 8 * kLanes;
    float sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
    for (int32_t thread = 0; thread < threads; thread++) {
        Vec sums[8] = {};
        const float* part = data + count / threads * thread;
        for (int64_t pass = 0; pass < passes; pass++)
            for (int64_t i = 0; i + kStride <= count / threads; i += kStride)
#pragma GCC unroll 8
                for (int v = 0; v < 8; v++) sums[v] += load(part + i + v * kLanes);
        for (int v = 0; v < 8; v++) sum += total(sums[v]);
    }
    *result = sum;
}
}
