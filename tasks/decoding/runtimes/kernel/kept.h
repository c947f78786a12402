// What a model has predicted behind prefixes of texts, kept from one call of the loop to the next: methods that decode the same
// texts one after the other, with equal random numbers, ask for few predictions that no earlier one had.

#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace {

constexpr int64_t kMostKept = int64_t(1) << 26;  // logits; what lies beyond is computed again

struct Kept {
    // A prefix: its logits, none where it is not known, and the output of the greatest.
    struct Node {
        std::vector<float> logits;
        int32_t best = -1;
    };

    std::vector<Node> nodes = std::vector<Node>(1);
    std::unordered_map<uint64_t, int32_t> following;  // the node behind a node and a token
    std::vector<std::vector<int32_t>> held;           // the tokens in each slot of the model's cache
    int64_t count = 0;                                // of kept logits

    int32_t step(int32_t node, int32_t token) {
        const auto [found, is_new] = following.try_emplace(uint64_t(node) << 32 | uint32_t(token), int32_t(nodes.size()));
        if (is_new) nodes.emplace_back();
        return found->second;
    }

    // The nodes of the beginnings of a text that end at each of `[from, to)`; `source` tells texts with unequal prompts apart.
    std::vector<int32_t> beginnings(int32_t source, const int32_t* tokens, int64_t prompt, int64_t from, int64_t to) {
        std::vector<int32_t> found;
        int32_t node = step(0, source);
        for (int64_t end = prompt; end < to; end++) {
            if (end > prompt) node = step(node, tokens[end - 1]);
            if (end >= from) found.push_back(node);
        }
        return found;
    }

    void keep(int32_t node, const float* logits, int64_t outputs, int32_t best) {
        if (best < 0 || count + outputs > kMostKept) return;
        nodes[node].logits.assign(logits, logits + outputs);
        nodes[node].best = best;
        count += outputs;
    }

    // How many tokens of a text its slot holds, if at least `known` and at most `most`.
    int64_t begin(size_t slot, const int32_t* tokens, int64_t known, int64_t most) {
        if (held.size() <= slot) held.resize(slot + 1);
        const auto& here = held[slot];
        while (known < most && known < int64_t(here.size()) && here[known] == tokens[known]) known++;
        return known;
    }

    // Notes that a run has put the tokens of `[from, to)` into a slot.
    void fed(size_t slot, const int32_t* tokens, int64_t from, int64_t to) {
        held[slot].resize(from);
        held[slot].insert(held[slot].end(), tokens + from, tokens + to);
    }
};

}  // namespace
