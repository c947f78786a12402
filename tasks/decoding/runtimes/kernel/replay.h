// The speculative loop on predictions that are known already: no model runs.
//
// `tasks/decoding/replay/replayer.py` defines the replay; `known_predictions.py` writes the nodes down.

#pragma once

#include "speculative_loop.h"

extern "C" {

// What a model predicts after a prefix: its argmax, the score of that, and the entropy of all scores. -1: not known.
struct KnownPrediction {
    int32_t best;
    double top, entropy;
};

// A prefix: its last token, the first of the prefixes that are one token longer, and the next one of those beside it; 0: none,
// since the empty prefix, which is the first node, is in no such list.
struct ReplayNode {
    int32_t token, child, sibling;
    KnownPrediction small, large;
    double score, surprisal;  // of the small model's argmax by the large one; NaN: not known
};
}

namespace {

// The text of a replay, and the node of it; -1 where there is none.
struct Path {
    const ReplayNode* nodes;
    Text text;
    int32_t node = 0;
};

int32_t step(const ReplayNode* nodes, int32_t node, int32_t token) {
    for (int32_t next = nodes[node].child; next; next = nodes[next].sibling)
        if (nodes[next].token == token) return next;
    return -1;
}

// Whether all is known that a rule may ask about the small model's argmax.
bool comparable(const ReplayNode& node) { return node.small.best >= 0 && node.large.best >= 0 && !std::isnan(node.score); }

// Whether a position defers to the large model, in the numbers and the arithmetic of `cascade_rules.py`.
bool defers(const Deferral& bounds, const ReplayNode& node) {
    const KnownPrediction &q = node.small, &p = node.large;
    return q.top < bounds.min_confidence || q.entropy > bounds.max_entropy || p.top - q.top > bounds.max_gain ||
           q.entropy - p.entropy > bounds.max_entropy_gain || node.surprisal > bounds.max_surprisal ||
           p.top - node.score > bounds.max_gap || node.score < bounds.min_share * p.top;
}

// Whether the small model's argmax is accepted at a node where the large model's is another one.
bool accepts(const LoopRules& rules, const ReplayNode& node) {
    if (rules.deferral) return !defers(*rules.deferral, node);
    const Acceptance& rule = rules.acceptance;
    return node.score >= rule.min_share * node.large.top || node.surprisal <= rule.max_surprisal ||
           node.large.top - node.score <= rule.max_gap;
}

// 1. Drafts tokens behind the text. Returns false where a prediction is not known.
bool propose_known(const LoopRules& rules, Path& path, Turn& turn, int32_t* best) {
    const DraftStops stops = draft_stops(rules);
    const int64_t budget = budget_of(rules, path.text);
    double cumulative = 1, confidence = 1, nats = 0;
    for (int32_t node = path.node; turn.predicted < budget; node = step(path.nodes, node, best[turn.predicted - 1])) {
        if (node < 0 || path.nodes[node].small.best < 0) return false;
        best[turn.predicted] = path.nodes[node].small.best;
        confidence = path.nodes[node].small.top;
        nats = path.nodes[node].small.entropy;
        if (stops.after(best[turn.predicted++], confidence, nats, cumulative)) break;
    }
    if (turn.predicted) cut_draft(rules, turn, best, confidence, nats);
    std::copy(best, best + turn.drafted, path.text.tokens + path.text.count);
    return true;
}

// 3. Reads the target's predictions; 4. keeps a prefix; 5. adds a token. Returns false where a prediction is not known.
bool verify_known(const LoopRules& rules, Path& path, Turn& turn) {
    const int32_t* draft = path.text.tokens + path.text.count;
    int32_t end = path.node, last = path.node;  // of the draft, and of what is accepted of it
    Keeping keeping(rules.acceptance);
    turn.verified = 1;
    for (int32_t index = 0; index < turn.drafted; index++) {
        if (end < 0 || path.nodes[end].large.best < 0 || !(keeping.over || comparable(path.nodes[end]))) return false;
        const ReplayNode& node = path.nodes[end];
        const bool agrees = node.large.best == node.small.best;
        end = step(path.nodes, end, draft[index]);
        if (keeping.over) continue;
        const bool kept = (agrees && (rules.deferral || rules.acceptance.agreement == 1)) || accepts(rules, node);
        keeping.examine(index, kept, [&] { return node.large.entropy; });
        if (!kept && rules.acceptance.agreement == 2 && agrees) keeping.count = turn.drafted;
        if (keeping.count == index + 1) last = end;
    }
    turn.accepted = keeping.count;
    if (rules.adds_bonus && (end < 0 || path.nodes[end].large.best < 0)) return false;
    const bool whole = turn.accepted == turn.drafted;
    if (whole) last = end;
    keep_accepted(rules, path.text, turn);
    path.node = last;
    if (!turn.added) return true;
    int32_t next = path.nodes[last].large.best;
    if (whole && rules.deferral) {
        if (!comparable(path.nodes[end])) return false;
        turn.predicted++;
        if (!defers(*rules.deferral, path.nodes[end])) next = path.nodes[end].small.best;
    }
    path.text.tokens[path.text.count++] = next;
    path.node = step(path.nodes, last, next);
    return true;
}

}  // namespace

extern "C" {

// Writes the text that a method decodes to `tokens`, their number to `count`, and its turns to `turns`. Returns the number of turns; 0
// where the text reaches a prediction that is not known. `best` (window) is a buffer.
int64_t draftline_replay(const ReplayNode* nodes, const LoopRules* rules, int32_t* tokens, int64_t* count, Turn* turns, int32_t* best) {
    Path path{nodes, Text{tokens, 0, 0, 0, 0, 0}};
    for (int64_t found = 1;; found++) {
        Turn& turn = turns[found - 1] = {};
        if (!propose_known(*rules, path, turn, best)) return 0;
        *count = path.text.count + turn.drafted;
        if (ends_unverified(*rules, path.text, turn)) return found;
        if (!verify_known(*rules, path, turn)) return 0;
        *count = path.text.count;
        if (ended(*rules, path.text)) return found;
    }
}
}
