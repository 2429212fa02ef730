#include "worker/kernels/logit_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/worker/kernels/kernel_kit.h"

namespace hearth {
namespace {

// Returns numbers of logits: every length of the last vector, and full and partial blocks.
std::vector<int64_t> LogitCounts() {
  std::vector<int64_t> counts;
  for (int64_t count = 1; count <= 34; ++count) counts.push_back(count);
  for (const int64_t count : {160, 1023, 1024, 1025, 3000}) counts.push_back(count);
  return counts;
}

std::vector<float> LogitsOf(int64_t count, float scale) {
  Numbers numbers(static_cast<uint64_t>(count));
  std::vector<float> logits(static_cast<size_t>(count));
  for (float& logit : logits) logit = scale * numbers.Value();
  return logits;
}

TEST(LogitRows, FindsFirstGreatestLogit) {
  for (const int64_t count : LogitCounts()) {
    for (int64_t at = 0; at < count; at += 1 + count / 40) {
      std::vector<float> logits = LogitsOf(count, 20);
      logits[static_cast<size_t>(at)] = logits.back() = 21;
      ForEachTarget([&](const std::string& target) {
        const LogitScan scan = ScanLogits(logits.data(), count);
        EXPECT_TRUE(scan.all_finite) << target << " " << count;
        EXPECT_EQ(scan.greatest, at) << target << " " << count;
      });
    }
  }
  const std::vector<float> zeros = {-1, -0.0F, 0.0F, -2};
  ForEachTarget([&](const std::string&) { EXPECT_EQ(ScanLogits(zeros.data(), 4).greatest, 1); });
}

TEST(LogitRows, DetectsNonFiniteLogit) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t count : LogitCounts()) {
    for (const float bad : {std::nanf(""), infinity, -infinity}) {
      for (int64_t at = 0; at < count; at += 1 + count / 40) {
        std::vector<float> logits = LogitsOf(count, 20);
        logits[static_cast<size_t>(at)] = bad;
        ForEachTarget([&](const std::string& target) {
          EXPECT_FALSE(ScanLogits(logits.data(), count).all_finite) << target << " " << at;
        });
      }
    }
  }
}

TEST(LogitRows, FindsFirstLogitAboveBound) {
  for (const int64_t count : LogitCounts()) {
    const std::vector<float> logits = LogitsOf(count, 1);
    for (const float bound : {-2.0F, 0.0F, 0.9F, logits.front(), 2.0F}) {
      for (int64_t begin = 0; begin <= count; begin += 1 + count / 20) {
        int64_t wanted = begin;
        while (wanted < count && !(logits[static_cast<size_t>(wanted)] > bound)) ++wanted;
        ForEachTarget([&](const std::string& target) {
          EXPECT_EQ(NextGreater(logits.data(), begin, count, bound), wanted)
              << target << " " << count;
        });
      }
    }
  }
}

TEST(LogitRows, SoftmaxWeightSumsStayWithinBound) {
  for (const int64_t count : LogitCounts()) {
    for (const float scale : {1.0F, 30.0F, 3e30F}) {
      const std::vector<float> logits = LogitsOf(count, scale);
      const double greatest = *std::max_element(logits.begin(), logits.end());
      for (const double temperature : {1.0, 0.01, 100.0}) {
        double whole = 0;
        std::vector<double> wanted(static_cast<size_t>((count + 1023) / 1024));
        for (int64_t i = 0; i < count; ++i) {
          const double weight = std::exp((logits[static_cast<size_t>(i)] - greatest) / temperature);
          wanted[static_cast<size_t>(i / kWeightBlock)] += weight;
          whole += weight;
        }
        ForEachTarget([&](const std::string& target) {
          std::vector<double> sums(wanted.size());
          SumWeights(logits.data(), count, greatest, temperature, sums.data());
          for (size_t i = 0; i < sums.size(); ++i) {
            EXPECT_NEAR(sums[i], wanted[i], whole * kWeightError * static_cast<double>(count + 16))
                << target << " " << count << " " << scale;
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace hearth
