#include "services/inference/worker_metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace hearth {
namespace {

TEST(WorkerMetrics, CachedTokensHaveTierLabel) {
  EngineStats stats;
  stats.counters = {{"cached_tokens_worker", 1},
                    {"cached_tokens_gpu", 2},
                    {"cached_tokens_host", 3},
                    {"cached_tokens_disk", 4},
                    {"prompt_tokens", 5}};
  std::map<std::string, double> tiers;
  bool has_prompt_tokens = false;
  for (const MetricSample& sample : EngineSamples(stats)) {
    if (sample.name == "hearth_worker_cached_tokens_total") {
      tiers[sample.labels.at("tier")] = sample.value;
    } else {
      EXPECT_EQ(sample.name.find("cached_tokens"), std::string::npos) << sample.name;
    }
    has_prompt_tokens |= sample.name == "hearth_worker_prompt_tokens_total" && sample.value == 5;
  }
  EXPECT_EQ(tiers,
            (std::map<std::string, double>{{"worker", 1}, {"gpu", 2}, {"host", 3}, {"disk", 4}}));
  EXPECT_TRUE(has_prompt_tokens);
}

TEST(WorkerMetrics, GrammarSamplesShowStats) {
  GrammarEngine::Stats stats;
  stats.compiled = 5;
  stats.refused = 2;
  stats.bytes = 1000;
  std::map<std::string, double> values;
  for (const MetricSample& sample : GrammarSamples(stats)) values[sample.name] = sample.value;
  EXPECT_EQ(values, (std::map<std::string, double>{{"hearth_worker_grammars_total", 5},
                                                   {"hearth_worker_grammars_refused_total", 2},
                                                   {"hearth_worker_grammar_bytes", 1000}}));
}

}  // namespace
}  // namespace hearth
