// The effect of the scheduler's order on the time to first token, in virtual time: an open loop of
// requests, Poisson arrivals at 70 % of the capacity, whose steps cost what a formula says. No
// model, no clock, equal on every machine; bench/open_loop.py asks the same of real workers.
//   schedule_bench [PLACES]       default: 16
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "worker/engine/scheduler.h"

namespace hearth {
namespace {

constexpr int kRequests = 400, kSeeds = 20, kAnswerTokens = 16;
constexpr uint32_t kSharedRows = 128, kRows = 512;  // of a step while some decode, and while none

// Of the 270M on two threads: about so many milliseconds.
double StepMs(size_t decoding, uint32_t prefilled) {
  return 11 + (prefilled > 0 ? 1.2 : 1.7) * static_cast<double>(decoding) + 0.85 * prefilled;
}

struct Arrival {
  double at_ms = 0;
  uint32_t tokens = 0;  // behind what is cached
};

// `tokens`: 80 % of each prompt of 640 tokens are cached. Else 80 % of the prompts of 576 tokens
// are, but for 64.
std::vector<Arrival> Arrivals(bool tokens, double per_second, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> pause(per_second / 1000);
  std::bernoulli_distribution shared(0.8);
  std::vector<Arrival> arrivals(kRequests);
  double at_ms = 0;
  for (Arrival& arrival : arrivals) {
    arrival.at_ms = at_ms += pause(random);
    arrival.tokens = tokens ? 128 : shared(random) ? 64 : 576;
  }
  return arrivals;
}

// Times to first token, and when all were answered. With `callers` each arrives when a place is
// free.
std::vector<double> Serve(std::vector<Arrival> arrivals, uint32_t places, bool callers,
                          double* end_ms) {
  Scheduler scheduler(places, kRequests);
  std::map<SequenceId, uint32_t> prefill_left, decode_left;
  std::vector<double> times;
  double now_ms = 0;
  size_t arrived = 0, answered = 0;
  while (answered < arrivals.size()) {
    while (arrived < arrivals.size() && (callers || arrivals[arrived].at_ms <= now_ms)) {
      scheduler.Enqueue(++arrived);
    }
    for (auto next = scheduler.Candidates(); !next.empty(); next = scheduler.Candidates()) {
      const SequenceId id = next.front();
      scheduler.Admit(id);
      prefill_left[id] = arrivals[id - 1].tokens;
      scheduler.StartPrefill(id, prefill_left[id]);
    }
    const std::vector<PlannedStep> step = scheduler.NextBatch(kSharedRows, kRows);
    if (step.empty()) {
      now_ms = arrivals[arrived].at_ms;
      continue;
    }
    uint32_t prefilled = 0;
    for (const PlannedStep& part : step) {
      prefilled += part.kind == StepKind::kPrefill ? part.tokens : 0;
    }
    now_ms += StepMs(decode_left.size(), prefilled);
    for (const PlannedStep& part : step) {
      if (part.kind == StepKind::kDecode) {
        if (--decode_left.at(part.id) > 0) continue;
        decode_left.erase(part.id);
        scheduler.Remove(part.id);
        ++answered;
      } else if ((prefill_left.at(part.id) -= part.tokens) == 0) {
        prefill_left.erase(part.id);
        decode_left[part.id] = kAnswerTokens - 1;
        scheduler.StartDecode(part.id);
        times.push_back(now_ms - arrivals[part.id - 1].at_ms);
      }
    }
  }
  *end_ms = now_ms;
  std::sort(times.begin(), times.end());
  return times;
}

void Report(bool tokens, uint32_t places) {
  double end_ms = 0, p50 = 0, mean = 0, p99 = 0, ratio = 0;
  Serve(Arrivals(tokens, 1, 0), places, /*callers=*/true, &end_ms);
  const double capacity = kRequests / end_ms * 1000;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto times =
        Serve(Arrivals(tokens, 0.7 * capacity, seed), places, /*callers=*/false, &end_ms);
    const double median = times[times.size() / 2], late = times[times.size() * 99 / 100];
    p50 += median / kSeeds;
    p99 += late / kSeeds;
    ratio += late / median / kSeeds;
    for (const double time : times) mean += time / kSeeds / kRequests;
  }
  std::printf("%-9s %2u places: capacity %.2f/s, p50 %.0f mean %.0f p99 %.0f ms, p99/p50 %.2f\n",
              tokens ? "tokens" : "requests", places, capacity, p50, mean, p99, ratio);
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  const int places = argc > 1 ? std::atoi(argv[1]) : 16;
  if (places < 1) return 2;
  for (const bool tokens : {true, false}) hearth::Report(tokens, static_cast<uint32_t>(places));
}
