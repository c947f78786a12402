// The speculative loop for acceptance rules that are numbers, greedy or sampled, without Python between model runs.
//
// From top to bottom: what a row, a turn and the rules are; the greedy acceptance rule; what a turn does to a text; the loop. `tasks/decoding` defines loop and turn in Python, and
// makes tokens, proposers and counts of the turns that are reported. Rows take their turns together: a run of a model covers the
// new tokens of all rows that need it, and each number in it is the same, to the bit, as in a run of one row.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kept.h"
#include "sampling.h"

extern "C" {

// Where a speculative cascade defers to the large model: where one of these bounds is crossed.
struct Deferral {
    double min_confidence, max_entropy, max_gain, max_entropy_gain, max_surprisal, max_gap, min_share;
};

// The draft rule, the acceptance rule, the limit, and the tokens that end a text for either model.
struct LoopRules {
    Acceptance acceptance;
    double fallback_threshold, stop_below, max_entropy;
    int32_t window, ends_unverified;
    int64_t limit;
    const int32_t *small_ends, *large_ends;
    int64_t small_end_count, large_end_count;
    const Deferral* deferral;  // of a greedy cascade, whose acceptance rule this is then; otherwise none
    const Sampling* sampling;  // none: greedy
};

// One turn: predictions of the drafter, drafted tokens, whether the drafter fell back, accepted tokens, whether the target ran,
// and whether it added a token.
struct Turn {
    int32_t predicted, drafted, fallback, accepted, verified, added;
};

// The text so far; `tokens` begin with the prompt.
struct Text {
    int32_t* tokens;
    int64_t prompt, count, small_cached, large_cached;
    int64_t generated() const { return count - prompt; }
};

// One of the two models, and the buffers of its runs; or a table in place of the small one.
struct LoopModel {
    const Stack* stack;
    const Cache* cache;
    float *hidden, *logits;  // of all new tokens of a run, (tokens, width), and of the positions that it predicts at, (positions, stride)
    float* drafted;          // the small model's logits, (rows, window + 1, stride), where the acceptance rule reads them; otherwise none
    int64_t stride, vocabulary;
    const int32_t* next;  // of a table: what follows each token, and how confidently
    const double* confidence;
    void* kept;  // `Kept`: predictions of earlier calls on the same prompts; none: nothing is kept
};

// A row: its text, with room for all tokens; its turns so far, with room for all; and whether the text has ended.
struct LoopRow {
    Text text;
    Turn* turns;
    int64_t turn_count;
    int32_t ended;
    int64_t example;  // keys its random numbers
    int32_t source;   // rows with equal prompts and sources have equal ones, where predictions are kept
};
}

namespace {

// Whether a rule's bounds on the scores themselves accept a token whose score is `share` of the highest.
bool accepts_score(const Acceptance& rule, const float* logits, int64_t outputs, float top, double share) {
    if (rule.max_surprisal < 0 && rule.max_gap < 0) return false;
    const double highest = confidence(logits, outputs, top), score = share * highest;
    return -std::log(score) <= rule.max_surprisal || highest - score <= rule.max_gap;
}

// How many drafted tokens stay: `best` and `logits` (drafted + 1, stride) are what the large model predicts at their positions.
int64_t count_kept(const Acceptance& rule, const float* logits, int64_t stride, int64_t vocabulary, const int32_t* best, const int32_t* draft,
                   int64_t drafted) {
    for (int64_t index = 0; index < drafted; index++) {
        const float* here = logits + index * stride;
        if (best[index] < 0 || (rule.keep_agreed && best[index] == draft[index])) continue;
        const float top = here[best[index]];
        const double share = std::exp(double(here[draft[index]]) - top);
        if (share >= rule.min_share || accepts_score(rule, here, vocabulary, top, share)) continue;
        return index;
    }
    return drafted;
}

// Where a draft stops before its budget: after a token whose confidence is not above `fallback_threshold`, one with which the
// product of confidences falls under `stop_below`, one where the entropy is above `max_entropy`, or one that ends a text.
struct DraftStops {
    double fallback_threshold, stop_below, max_entropy;
    const int32_t* ends;
    int64_t end_count;

    bool reads_scores() const { return fallback_threshold > 0 || stop_below > 0; }
    bool reads_entropy() const { return max_entropy < HUGE_VAL; }

    bool after(int32_t token, double confidence, double nats, double& cumulative) const {
        cumulative *= confidence;
        const bool unsure = confidence <= fallback_threshold || cumulative < stop_below || nats > max_entropy;
        return unsure || std::find(ends, ends + end_count, token) != ends + end_count;
    }
};

inline bool contains(const int32_t* ends, int64_t count, int32_t token) {
    return std::find(ends, ends + count, token) != ends + count;
}

inline bool ends_text(const LoopRules& rules, int32_t token) { return contains(rules.large_ends, rules.large_end_count, token); }

inline DraftStops draft_stops(const LoopRules& rules) {
    return {rules.fallback_threshold, rules.stop_below, rules.max_entropy, rules.small_ends, rules.small_end_count};
}

// Tokens that may be drafted behind the text.
int64_t budget_of(const LoopRules& rules, const Text& text) {
    return std::min<int64_t>(rules.window, rules.limit - text.generated() - !rules.ends_unverified);
}

// Cuts the predictions of a turn into its draft: without one that was not confident enough, and no further than a token that ends
// the text. `last_confidence` and `last_nats` are of the last prediction.
void cut_draft(const LoopRules& rules, Turn& turn, const int32_t* predicted, double last_confidence, double last_nats) {
    turn.fallback = last_confidence <= rules.fallback_threshold || last_nats > rules.max_entropy;
    turn.drafted = turn.predicted - turn.fallback;
    for (int32_t index = 0; index < turn.drafted; index++)
        if (ends_text(rules, predicted[index])) {
            turn.drafted = index + 1;
            turn.fallback = 0;
        }
}

// Whether the text ends with its draft, which the target then does not see, as BiLD's may.
bool ends_unverified(const LoopRules& rules, const Text& text, const Turn& turn) {
    if (!rules.ends_unverified || !turn.drafted) return false;
    return text.generated() + turn.drafted == rules.limit || ends_text(rules, text.tokens[text.count + turn.drafted - 1]);
}

// Takes the accepted tokens of a draft behind the text, and says whether another one follows them.
void keep_accepted(const LoopRules& rules, Text& text, Turn& turn) {
    text.count += turn.accepted;
    const bool whole = turn.accepted == turn.drafted;
    const bool ended = turn.drafted > 0 && ends_text(rules, text.tokens[text.count - 1]);
    turn.added = !(whole && ended);
}

// Whether the text ends with a turn that was verified.
bool ended(const LoopRules& rules, const Text& text) {
    return text.generated() >= rules.limit || ends_text(rules, text.tokens[text.count - 1]);
}

// What a model predicts at a position: the logits of its outputs, and its argmax, with the logit of that.
struct Prediction {
    const float* logits;
    int64_t outputs;
    int32_t best;
    float top;

    Prediction(const LoopModel& model, const float* logits, int32_t best)
        : logits(logits), outputs(model.vocabulary), best(best), top(logits[output_of(*model.stack, best)]) {}
};

// Whether a position defers to the large model (Narasimhan et al., 2024, Table 1), whose head is a whole one.
bool defers(const Deferral& bounds, const Prediction& q, const Prediction& p) {
    const double share = std::exp(double(p.logits[q.best]) - p.top);
    if (share < bounds.min_share) return true;
    const double q_top = confidence(q.logits, q.outputs, q.top);
    if (q_top < bounds.min_confidence) return true;
    const double p_top = confidence(p.logits, p.outputs, p.top);
    if (p_top - q_top > bounds.max_gain || p_top - share * p_top > bounds.max_gap) return true;
    if (-std::log(share * p_top) > bounds.max_surprisal) return true;
    if (bounds.max_entropy == HUGE_VAL && bounds.max_entropy_gain == HUGE_VAL) return false;
    const double q_entropy = entropy(q.logits, q.outputs, q.top);
    return q_entropy > bounds.max_entropy || q_entropy - entropy(p.logits, p.outputs, p.top) > bounds.max_entropy_gain;
}

// A row in its present turn.
struct Row {
    LoopRow& given;
    Text& text;
    int32_t slot;
    int64_t budget = 0, end = 0, at = 0;  // tokens that it may draft, where they end, and which of the large model's positions is its first
    int32_t next = 0;                     // what the target puts behind the accepted tokens
    double cumulative = 1, last_confidence = 1, last_nats = 0;  // of the draft so far, and of its last prediction

    Row(LoopRow& given, int32_t slot) : given(given), text(given.text), slot(slot) {}
    Turn& turn() const { return given.turns[given.turn_count - 1]; }
    const int32_t* draft() const { return text.tokens + text.count; }

    void begin_turn(const LoopRules& rules) {
        given.turns[given.turn_count++] = {};
        budget = budget_of(rules, text);
        end = text.count;
        cumulative = last_confidence = 1;
        last_nats = 0;
    }
};

using Rows = std::vector<Row*>;

// New tokens of rows, which go through a model together.
struct Run {
    std::vector<int32_t> tokens, begin, cached, slots, reads;

    void clear() {
        for (auto* part : {&tokens, &begin, &cached, &slots, &reads}) part->clear();
        begin.push_back(0);
    }

    // Adds what lies in `[from, to)` of a row, to be predicted after the last `read` of it.
    void add(const Row& row, int64_t from, int64_t to, int64_t read) {
        tokens.insert(tokens.end(), row.text.tokens + from, row.text.tokens + to);
        begin.push_back(tokens.size());
        cached.push_back(from);
        slots.push_back(row.slot);
        reads.push_back(read);
    }

    // Runs the model; its logits are those of the positions that are read, row after row, `best` the outputs of the greatest.
    void predict(const LoopModel& model, std::vector<int32_t>& best) const {
        const RowBatch rows{int64_t(slots.size()), tokens.data(), begin.data(), cached.data(), slots.data()};
        run_stack(*model.stack, *model.cache, rows, model.hidden);
        const int64_t width = model.stack->width;
        int64_t positions = 0;
        for (size_t row = 0; row < slots.size(); row++) {
            std::memmove(model.hidden + positions * width, model.hidden + (begin[row + 1] - reads[row]) * width, reads[row] * width * sizeof(float));
            positions += reads[row];
        }
        best.resize(positions);
        predict_outputs(*model.stack, model.hidden, positions, model.logits, model.stride, model.vocabulary, best.data());
    }
};

// The turns of rows that are decoded together. A step gives the row in which a model's logits are broken, or none.
struct SpeculativeLoop {
    const LoopModel &small, &large;
    const LoopRules& rules;
    const DraftStops stops = draft_stops(rules);
    Run run = {};
    std::vector<int32_t> best = {};
    std::vector<Distribution> drawn_from = {};  // of drafted positions, as `drafted`
    std::vector<Both> both = {};

    int64_t drafted_at(const Row& row, int64_t index) const { return row.slot * (rules.window + 1) + index; }

    float* drafted_logits(const Row& row, int64_t index) const { return small.drafted + drafted_at(row, index) * small.stride; }

    Draws draws_of(const Row& row) const { return {*rules.sampling, row.given.example}; }

    const float* large_logits(const Row& row, int64_t index) const { return large.logits + (row.at + index) * large.stride; }

    // Puts the drafter's next prediction behind the draft. Returns whether it drafts on.
    bool extend(Row& row, int32_t token, double confidence, double nats) const {
        row.text.tokens[row.end++] = token;
        row.turn().predicted++;
        row.last_confidence = confidence;
        row.last_nats = nats;
        return !stops.after(token, confidence, nats, row.cumulative) && row.turn().predicted < row.budget;
    }

    void draft_by_table(Row& row) const {
        for (bool going = true; going;) {
            const int32_t last = row.text.tokens[row.end - 1];
            going = extend(row, small.next[last], stops.reads_scores() ? small.confidence[last] : 1, 0);
        }
    }

    // Predicts behind the last `reads` beginnings of each row's tokens up to `end`, by a run over those that are not kept. Logits are
    // row after row.
    template <typename Reads>
    void predict(const LoopModel& model, int64_t Text::*cached, const Rows& rows, Reads reads) {
        Kept* kept = static_cast<Kept*>(model.kept);
        std::vector<std::vector<int32_t>> beginnings;  // where predictions are kept
        std::vector<bool> known(rows.size());
        run.clear();
        for (size_t index = 0; index < rows.size(); index++) {
            const Row& row = *rows[index];
            Text& text = row.text;
            const int64_t count = reads(row), from = row.end + 1 - count;
            if (kept) {
                beginnings.push_back(kept->beginnings(row.given.source, text.tokens, text.prompt, from, row.end + 1));
                const auto has = [&](int32_t node) { return !kept->nodes[node].logits.empty(); };
                known[index] = std::all_of(beginnings[index].begin(), beginnings[index].end(), has);
                if (known[index]) continue;
                text.*cached = kept->begin(row.slot, text.tokens, text.*cached, from - 1);
                kept->fed(row.slot, text.tokens, text.*cached, row.end);
            }
            run.add(row, text.*cached, row.end, count);
            text.*cached = row.end;
        }
        if (run.slots.empty()) best.clear();
        else run.predict(model, best);
        if (kept) spread(model, *kept, beginnings, known);
    }

    // Puts kept predictions between those of a run, and keeps these.
    void spread(const LoopModel& model, Kept& kept, const std::vector<std::vector<int32_t>>& beginnings, const std::vector<bool>& known) {
        int64_t from = best.size(), to = 0;
        for (const auto& nodes : beginnings) to += nodes.size();
        best.resize(to);
        const auto logits_at = [&](int64_t position) { return model.logits + position * model.stride; };
        for (size_t index = beginnings.size(); index-- > 0;) {
            const auto& nodes = beginnings[index];
            for (size_t at = nodes.size(); at-- > 0;) {
                const Kept::Node& node = kept.nodes[nodes[at]];
                to--;
                if (known[index]) {
                    std::copy(node.logits.begin(), node.logits.end(), logits_at(to));
                    best[to] = node.best;
                    continue;
                }
                from--;
                if (from != to) std::copy_n(logits_at(from), model.vocabulary, logits_at(to));
                best[to] = best[from];
                if (node.logits.empty()) kept.keep(nodes[at], logits_at(to), model.vocabulary, best[to]);
            }
        }
    }

    // Predicts one token behind each row and its draft by the small model.
    void predict_next(const Rows& rows) {
        predict(small, &Text::small_cached, rows, [](const Row&) { return 1; });
    }

    // Draws a token of the drafter's; a position that is drafted again gets another number.
    int32_t draw_draft(const Row& row, const float* logits, int32_t best) {
        const int64_t index = row.turn().predicted;
        if (small.drafted) logits = drafted_logits(row, index);
        const Distribution q = distribution_of(rules.sampling->small, logits, small.vocabulary, best);
        const size_t at = drafted_at(row, index);
        if (drawn_from.size() <= at) drawn_from.resize(at + 1);
        drawn_from[at] = q;
        return draws_of(row).draw(q, row.end, kDraft, row.text.count);
    }

    // Drafts token by token; a row leaves the batch where its draft stops.
    Row* draft_by_model(Rows rows) {
        while (!rows.empty()) {
            predict_next(rows);
            Rows going;
            for (size_t index = 0; index < rows.size(); index++) {
                Row& row = *rows[index];
                const float* here = small.logits + index * small.stride;
                if (best[index] < 0) return row.turn().predicted++, &row;
                const float top = here[best[index]];
                if (small.drafted) std::copy_n(here, small.vocabulary, drafted_logits(row, row.turn().predicted));
                const int32_t output = rules.sampling ? draw_draft(row, here, best[index]) : best[index];
                const double sure = stops.reads_scores() ? confidence(here, small.vocabulary, top) : 1;
                const double nats = stops.reads_entropy() ? entropy(here, small.vocabulary, top) : 0;
                if (extend(row, token_of(*small.stack, output), sure, nats)) going.push_back(&row);
            }
            rows.swap(going);
        }
        return nullptr;
    }

    // 1. Drafts tokens behind each text.
    Row* draft(const Rows& rows) {
        Rows drafting;
        for (Row* row : rows) {
            row->begin_turn(rules);
            if (row->budget > 0) drafting.push_back(row);
        }
        if (!small.next) {
            if (Row* broken = draft_by_model(drafting)) return broken;
        } else {
            for (Row* row : drafting) draft_by_table(*row);
        }
        for (Row* row : drafting) cut_draft(rules, row->turn(), row->draft(), row->last_confidence, row->last_nats);
        return nullptr;
    }

    // How many drafted tokens a cascade accepts: each where its position does not defer, or where it is the large model's argmax.
    int32_t accepted_by_cascade(const Row& row, const int32_t* p_best) const {
        const int32_t *draft = row.draft(), drafted = row.turn().drafted;
        for (int32_t index = 0; index < drafted; index++) {
            if (draft[index] == p_best[index]) continue;
            const Prediction q(small, drafted_logits(row, index), draft[index]), p(large, large_logits(row, index), p_best[index]);
            if (defers(*rules.deferral, q, p)) return index;
        }
        return drafted;
    }

    // What follows fully accepted drafts of a cascade: one more prediction of the drafter's, where it does not defer.
    Row* replace_by_cascade(const Rows& rows) {
        if (rows.empty()) return nullptr;
        for (Row* row : rows) row->end = row->text.count;
        predict_next(rows);
        for (size_t index = 0; index < rows.size(); index++) {
            Row& row = *rows[index];
            row.turn().predicted++;
            if (best[index] < 0) return row.turn().verified = 0, &row;
            const Prediction q(small, small.logits + index * small.stride, token_of(*small.stack, best[index]));
            const Prediction p(large, large_logits(row, row.turn().accepted), row.next);
            if (rules.sampling) {
                const Both here{distribution_of(rules.sampling->small, q.logits, q.outputs, q.best), large_distribution(row, row.turn().accepted, row.next)};
                row.next = CascadeTarget(here, rules.sampling->cascade, rules.sampling->value).draw(draws_of(row), row.text.count);
            } else if (!defers(*rules.deferral, q, p)) row.next = q.best;
        }
        return nullptr;
    }

    Distribution large_distribution(const Row& row, int64_t index, int32_t best) const {
        const float* logits = large_logits(row, index);
        return distribution_of(rules.sampling->large, logits, large.vocabulary, best);
    }

    // How many drafted tokens a sampled rule accepts; `next` becomes what replaces the first one that it does not, else stays.
    int32_t accepted_by_draws(Row& row, const int32_t* p_best) {
        const int32_t drafted = row.turn().drafted;
        both.clear();
        for (int32_t index = 0; index < drafted; index++)
            both.push_back({drawn_from[drafted_at(row, index)], large_distribution(row, index, p_best[index])});
        const Decision found = decide(*rules.sampling, draws_of(row), row.draft(), both, row.text.count);
        row.next = found.next;
        return found.accepted;
    }

    // Keeps a prefix of a sampled draft and draws what follows it; returns whether that takes one more prediction of the drafter's.
    bool keep_by_draws(Row& row, const int32_t* p_best) {
        Turn& turn = row.turn();
        row.next = -1;
        turn.accepted = rules.sampling->rule == kBounds ? kept_of(row, p_best) : accepted_by_draws(row, p_best);
        keep_accepted(rules, row.text, turn);
        if (!turn.added || row.next >= 0) return false;
        row.next = p_best[turn.accepted];
        if (rules.sampling->rule == kCascade) return true;
        row.next = draws_of(row).draw(large_distribution(row, turn.accepted, row.next), row.text.count, kTarget);
        return false;
    }

    int32_t kept_of(const Row& row, const int32_t* p_best) const {
        return count_kept(rules.acceptance, large_logits(row, 0), large.stride, large.vocabulary, p_best, row.draft(), row.turn().drafted);
    }

    void run_target(const Rows& rows) {
        int64_t positions = 0;
        for (Row* row : rows) {
            Turn& turn = row->turn();
            turn.verified = 1;
            row->end = row->text.count + turn.drafted;
            row->at = positions;
            positions += turn.drafted + 1;
        }
        predict(large, &Text::large_cached, rows, [](const Row& row) { return row.turn().drafted + 1; });
    }

    // 3. Runs the target; 4. keeps a prefix of each draft; 5. adds a token.
    Row* verify(const Rows& rows) {
        run_target(rows);
        Rows whole;
        for (Row* row : rows) {
            Turn& turn = row->turn();
            const int32_t* here = best.data() + row->at;
            if (contains(here, turn.drafted + 1, -1)) return row;
            if (rules.sampling) {
                if (keep_by_draws(*row, here)) whole.push_back(row);
                continue;
            }
            turn.accepted = rules.deferral ? accepted_by_cascade(*row, here) : kept_of(*row, here);
            keep_accepted(rules, row->text, turn);
            row->next = here[turn.accepted];
            if (rules.deferral && turn.added && turn.accepted == turn.drafted) whole.push_back(row);
        }
        if (Row* broken = replace_by_cascade(whole)) return broken;
        for (Row* row : rows) {
            Text& text = row->text;
            if (row->turn().added) text.tokens[text.count++] = row->next;
            text.large_cached = std::min(text.large_cached, text.count - 1);
            text.small_cached = std::min(text.small_cached, text.count - 1);
        }
        return nullptr;
    }

    // A turn of each row; those whose texts end leave.
    Row* take_turns(Rows& rows) {
        const auto leave = [&](auto ends) {
            for (Row* row : rows) row->given.ended = ends(*row);
            rows.erase(std::remove_if(rows.begin(), rows.end(), [](const Row* row) { return row->given.ended; }), rows.end());
        };
        if (Row* broken = draft(rows)) return broken;
        leave([&](const Row& row) { return ends_unverified(rules, row.text, row.turn()); });
        if (rows.empty()) return nullptr;
        if (Row* broken = verify(rows)) return broken;
        leave([&](const Row& row) { return ended(rules, row.text); });
        return nullptr;
    }
};

}  // namespace
