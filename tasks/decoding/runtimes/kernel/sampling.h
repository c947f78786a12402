// Scores; what sampled tokens are drawn from and with which numbers; and how a draft is accepted when sampling.
//
// No distribution is written out: the probability of a token is computed from its logit where it is read. `tasks/decoding`
// defines all of it: `distributions.py` the transform and the numbers, `rules.py` and `cascades.py` the rules.

#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "layers.h"

extern "C" {

// Gives one of `count` outcomes of these weights, or, where there is one, whether this chance is met: in place of the numbers below.
typedef int32_t (*Choose)(int64_t example, int64_t position, int32_t purpose, int64_t turn, const double* weights, int64_t count);

enum Purpose { kTarget, kAccept, kDraft };
enum SampledRule { kBounds, kLenient, kLossy, kTuned, kCascade };
enum CascadeRule { kChow, kChowLog, kDiff, kDiffLog, kOpt, kOptLog, kBild, kTokenV1, kTokenV2, kTokenV3 };

// From logits to what tokens are sampled from; a temperature of 0 is greedy.
struct Transform {
    double temperature, top_p;
    int64_t top_k;
};

// How tokens are sampled, the acceptance rule with its number (lenience, lossiness, or a cascade's α), and the key of all numbers.
struct Sampling {
    Transform small, large;
    int32_t rule, cascade;
    double value;
    uint64_t seed, stream;
    Choose choose;  // none: the numbers of `uniform`
};
}

namespace {

// The softmax of the greatest logit.
float confidence(const float* logits, int64_t vocabulary, float top) {
    Vec sums{};
    const int64_t whole = vocabulary / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) sums += exponential(load(logits + i) - top);
    float sum = total(sums);
    for (int64_t i = whole; i < vocabulary; i++) sum += std::exp(logits[i] - top);
    return 1.0f / sum;
}

// The entropy of the softmax, in nats.
float entropy(const float* logits, int64_t vocabulary, float top) {
    // A masked logit is -infinity, whose product with its probability of 0 must be 0.
    const float least = -87.0f;
    Vec sums{}, weighted{};
    const int64_t whole = vocabulary / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) {
        const Vec below = load(logits + i) - top, raised = exponential(below);
        sums += raised;
        weighted += raised * (below < least ? Vec{} + least : below);
    }
    float sum = total(sums), weighted_sum = total(weighted);
    for (int64_t i = whole; i < vocabulary; i++) {
        const float below = logits[i] - top, raised = below < least ? 0.0f : std::exp(below);
        sum += raised;
        weighted_sum += raised * std::max(below, least);
    }
    return std::log(sum) - weighted_sum / sum;
}

// A number in (0, 1): the first one of Philox 4x64 with ten rounds (Salmon et al., 2011), which counts before it draws, as numpy's does.
double uniform(uint64_t seed, uint64_t stream, uint64_t example, uint64_t position, uint64_t purpose, uint64_t turn) {
    uint64_t counter[4] = {example + 1, position, purpose, turn}, key[2] = {seed, stream};
    for (int round = 0; round < 10; round++) {
        const auto first = (unsigned __int128)0xD2E7470EE14C6C93 * counter[0], second = (unsigned __int128)0xCA5A826395121157 * counter[2];
        counter[0] = uint64_t(second >> 64) ^ counter[1] ^ key[0];
        counter[2] = uint64_t(first >> 64) ^ counter[3] ^ key[1];
        counter[1] = second;
        counter[3] = first;
        key[0] += 0x9E3779B97F4A7C15;
        key[1] += 0xBB67AE8584CAA73B;
    }
    return (double(counter[0] >> 11) + 0.5) * 0x1p-53;
}

// The sum of what `weight` gives for every vector of `count` tokens; 0 for lanes beyond the last one.
template <typename Weight>
double sum_of(int64_t count, Weight weight) {
    Vec sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * kLanes <= count; i += 4 * kLanes)
        for (int v = 0; v < 4; v++) sums[v] += weight(i + v * kLanes);
    for (; i < count; i += kLanes) sums[0] += weight(i);
    return total((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// A distribution over tokens: the softmax of logits over the temperature, where they are not under `cut`; or all on one token.
struct Distribution {
    const float* logits = nullptr;
    int64_t count = 0;
    int32_t best = 0;      // the token of the greatest logit
    float top = 0;         // that logit
    float cut = -HUGE_VALF;
    float heat = 1;        // 1 / temperature
    float share = 1;       // the probability of `best`
    bool greedy = false;   // all on `best`

    Vec at(int64_t i) const {
        if (greedy) {
            Vec weight{};
            if (i <= best && best < i + kLanes) weight[best - i] = 1;
            return weight;
        }
        const Vec logit = here(i), weight = exponential((logit - top) * heat);
        return (logit < cut ? Vec{} : weight) * share;
    }
    double of(int32_t token) const {
        if (greedy) return token == best;
        return logits[token] < cut ? 0 : std::exp(double(logits[token] - top) * heat) * share;
    }

    // Log-probabilities; -infinity beyond the last token.
    Vec log_at(int64_t i) const { return (here(i) - top) * heat + std::log(share); }

    void normalise() {
        share = 1;
        share = 1 / sum_of(count, [this](int64_t i) { return at(i); });
    }

   private:
    Vec here(int64_t i) const {
        if (i + kLanes <= count) return load(logits + i);
        Vec logit = Vec{} - HUGE_VALF;
        for (int64_t lane = 0; i + lane < count; lane++) logit[lane] = logits[i + lane];
        return logit;
    }
};

// A model's own softmax, which thresholds and confidences are of.
Distribution scores_of(const float* logits, int64_t count, int32_t best) {
    Distribution found{logits, count, best, logits[best]};
    found.normalise();
    return found;
}

// What tokens are sampled from: the transform of temperature, top-k and nucleus, in this order; ties with the last token stay.
Distribution distribution_of(const Transform& sampling, const float* logits, int64_t count, int32_t best) {
    Distribution found{logits, count, best, logits[best]};
    found.greedy = sampling.temperature == 0;
    if (found.greedy) return found;
    found.heat = float(1 / sampling.temperature);
    std::vector<float> kept;
    if (0 < sampling.top_k && sampling.top_k < count) {
        kept.assign(logits, logits + count);
        std::nth_element(kept.begin(), kept.begin() + sampling.top_k - 1, kept.end(), std::greater<>());
        found.cut = kept[sampling.top_k - 1];
    }
    found.normalise();
    if (sampling.top_p < 1) {
        // Tokens with less than an equal share of what lies outside are outside: together they have less than that.
        const double least = std::log((1 - sampling.top_p) / count / found.share);
        kept.clear();
        for (int64_t i = 0; i < count; i++)
            if (logits[i] >= found.cut && double(logits[i] - found.top) * found.heat >= least) kept.push_back(logits[i]);
        std::sort(kept.begin(), kept.end(), std::greater<>());
        double before = 0;
        for (size_t i = 0; i < kept.size() && before < sampling.top_p; i++) {
            found.cut = kept[i];
            before += std::exp(double(kept[i] - found.top) * found.heat) * found.share;
        }
        found.normalise();
    }
    return found;
}

// The random numbers of a text.
struct Draws {
    const Sampling& sampling;
    int64_t example;

    double number(int64_t position, Purpose purpose, int64_t turn) const {
        return uniform(sampling.seed, sampling.stream, example, position, purpose, turn);
    }

    bool accepts(double chance, int64_t position) const {
        if (chance <= 0 || chance >= 1) return chance >= 1;
        if (sampling.choose) return sampling.choose(example, position, kAccept, 0, &chance, 1);
        return number(position, kAccept, 0) < chance;
    }

    // Draws by inverting the cumulative distribution; weights need not sum to 1.
    template <typename Weight>
    int32_t draw(int64_t count, int64_t position, Purpose purpose, int64_t turn, Weight weight) const {
        if (sampling.choose) {
            std::vector<double> weights(count + kLanes);
            for (int64_t i = 0; i < count; i += kLanes) {
                const Vec some = weight(i);
                for (int64_t lane = 0; lane < kLanes; lane++) weights[i + lane] = some[lane];
            }
            return sampling.choose(example, position, purpose, turn, weights.data(), count);
        }
        const double target = number(position, purpose, turn) * sum_of(count, weight);
        double before = 0;
        int64_t last = 0;
        for (int64_t i = 0; i < count; i += kLanes) {
            const Vec some = weight(i);
            const double sum = total(some);
            if (sum > 0) last = i;
            if (before + sum < target || !(sum > 0)) {
                before += sum;
                continue;
            }
            for (int64_t lane = 0; lane < kLanes; lane++)
                if (some[lane] > 0 && (before += some[lane]) >= target) return i + lane;
        }
        // Rounding left nothing under the number: the last token that is possible.
        const Vec some = weight(last);
        int64_t lane = kLanes - 1;
        while (lane > 0 && !(some[lane] > 0)) lane--;
        return last + lane;
    }

    int32_t draw(const Distribution& from, int64_t position, Purpose purpose, int64_t turn = 0) const {
        return draw(from.count, position, purpose, turn, [&](int64_t i) { return from.at(i); });
    }
};

inline Vec positive(Vec value) { return value > 0 ? value : Vec{}; }

// The large model's and the small model's prediction at a position: what tokens are drawn from, and their own softmax.
struct Both {
    Distribution q, p;

    Distribution q_scores() const { return scores_of(q.logits, q.count, q.best); }
    Distribution p_scores() const { return scores_of(p.logits, p.count, p.best); }

    // Draws from norm(max(0, large p - small q)), or from `otherwise` where rounding leaves nothing of it.
    int32_t residual(const Draws& draws, int64_t position, double large, double small, const Distribution& otherwise) const {
        const float a = large, b = small;
        const auto rest = [&](int64_t i) { return positive(p.at(i) * a - q.at(i) * b); };
        if (!(sum_of(p.count, rest) > 0)) return draws.draw(otherwise, position, kTarget);
        return draws.draw(p.count, position, kTarget, 0, rest);
    }
};

// T(q, p) of a cascade at a position (Narasimhan et al., 2024, Table 1): one of the two distributions, or token by token.
struct CascadeTarget {
    const Both& both;
    bool defers = false, by_token = false;
    Distribution told_by = {};  // token by token: the scores that are bounded
    float bound = 0, deferred = 0;

    CascadeTarget(const Both& both, int32_t rule, double alpha) : both(both) {
        const Distribution q = both.q_scores(), p = both.p_scores();
        const float gain = p.share - q.share;  // as `variation`, which is never less where both are equal
        const auto entropy_of = [](const Distribution& one) { return double(entropy(one.logits, one.count, one.top)); };
        const auto variation = [&] { return sum_of(q.count, [&](int64_t i) { return positive(both.p.at(i) - both.q.at(i)); }); };
        by_token = rule >= kTokenV1;
        if (rule == kChow) defers = q.share < 1 - alpha;
        if (rule == kChowLog) defers = entropy_of(q) > alpha;
        if (rule == kDiff) defers = gain > alpha;
        if (rule == kDiffLog) defers = entropy_of(q) - entropy_of(p) > alpha;
        if (rule == kOpt) defers = gain > alpha * variation();
        if (rule == kOptLog) defers = entropy_of(q) - entropy_of(p) > alpha * variation();
        if (rule == kBild && both.q.greedy) defers = -std::log(p.of(q.best)) > alpha;
        if (rule == kBild && !both.q.greedy)
            defers = -sum_of(q.count, [&](int64_t i) {
                const Vec share = q.at(i);
                return share > 0 ? share * p.log_at(i) : Vec{};
            }) > alpha;
        if (!by_token) return;
        told_by = rule == kTokenV1 ? q : p;
        bound = rule == kTokenV3 ? (1 - alpha) * p.share : p.share - alpha;
        deferred = sum_of(q.count, [&](int64_t i) { return told_by.at(i) < bound ? both.q.at(i) : Vec{}; });
    }

    Vec at(int64_t i) const {
        if (!by_token) return defers ? both.p.at(i) : both.q.at(i);
        return (told_by.at(i) < bound ? Vec{} : both.q.at(i)) + both.p.at(i) * deferred;
    }
    double of(int32_t token) const {
        if (!by_token) return defers ? both.p.of(token) : both.q.of(token);
        return (told_by.of(token) < bound ? 0 : both.q.of(token)) + both.p.of(token) * deferred;
    }
    int32_t draw(const Draws& draws, int64_t position) const {
        return draws.draw(both.p.count, position, kTarget, 0, [this](int64_t i) { return at(i); });
    }
    int32_t residual(const Draws& draws, int64_t position) const {
        const auto rest = [this](int64_t i) { return positive(at(i) - both.q.at(i)); };
        return sum_of(both.p.count, rest) > 0 ? draws.draw(both.p.count, position, kTarget, 0, rest) : draw(draws, position);
    }
};

// β of lossy acceptance (SpecCascade, E.6), as `rules.py` solves for it: infinity where only that rejects nothing.
double tuned_beta(const Both& both, double lossiness) {
    struct Corner {
        double at, q, p;
    };
    std::vector<Corner> corners;
    double rejected = 0, q_below = 0, p_below = 0, beta = 0;
    for (int64_t token = 0; token < both.p.count; token++) {
        const double q = both.q.of(token), p = both.p.of(token);
        rejected += std::max(0.0, q - p / (1 - lossiness));
        if (p > 0) corners.push_back({q / p, q, p});
    }
    std::sort(corners.begin(), corners.end(), [](const Corner& one, const Corner& other) { return one.at < other.at; });
    for (const Corner& corner : corners) {
        q_below += corner.q;
        p_below += corner.p;
        if (beta && corner.at * p_below - q_below > rejected) break;
        beta = p_below / (rejected + q_below);
    }
    return std::max(beta, 1 - lossiness);
}

// How many tokens of a draft stay, and what replaces the first one that does not.
struct Decision {
    int32_t accepted;
    int32_t next = -1;  // -1: all stay
};

// Decides on the tokens of a draft one after the other; `both` has a position for each, `begin` is the first one's.
Decision decide(const Sampling& sampling, const Draws& draws, const int32_t* draft, const std::vector<Both>& both, int64_t begin) {
    const double value = sampling.value, raised = sampling.rule == kLenient ? 1 / value : 1 / (1 - value);
    for (size_t index = 0; index < both.size(); index++) {
        const Both& here = both[index];
        const int64_t position = begin + index;
        if (sampling.rule == kCascade) {
            const CascadeTarget target(here, sampling.cascade, value);
            if (!draws.accepts(target.of(draft[index]) / here.q.of(draft[index]), position))
                return {int32_t(index), target.residual(draws, position)};
            continue;
        }
        if (draws.accepts(here.p.of(draft[index]) * raised / here.q.of(draft[index]), position)) continue;
        if (sampling.rule == kLenient) return {int32_t(index), here.residual(draws, position, 1, value, here.p)};
        const double beta = sampling.rule == kTuned ? tuned_beta(here, value) : 1;
        return {int32_t(index), here.residual(draws, position, 1 / beta, 1, here.q)};
    }
    return {int32_t(both.size())};
}

}  // namespace
