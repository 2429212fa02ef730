// RocksDB's log format: what is read of a log that is flipped, cut or garbled.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cache_store/disk/files/disk_tier_records.h"

namespace hearth {
namespace {

TEST(LogRecords, OneFlippedBitIsPutRightWhereverItIs) {
  std::mt19937_64 random(1);
  std::string log;
  std::vector<std::string> records;
  for (const size_t bytes : {40u, 12u, 70'000u, 300u, 32'741u, 5u, 900u, 64u}) {
    std::string record(bytes, '\0');
    for (char& byte : record) byte = static_cast<char>(random());
    AppendLogRecord(record, &log);
    records.push_back(record);
  }
  ASSERT_EQ(WholeBytes(log), log.size());
  RecordEnds ends;
  ends.Feed(log);
  EXPECT_EQ(ends.end(), log.size());
  const auto read = [](const std::string& from, LogScan* scan) {
    std::vector<std::string> found;
    *scan = ScanLog(from, [&](absl::string_view record, uint64_t) { found.emplace_back(record); });
    return found;
  };
  LogScan scan;
  EXPECT_EQ(read(log, &scan), records);
  EXPECT_EQ(scan.mended + scan.holes, 0u);
  for (int i = 0; i < 1000; ++i) {
    std::string flipped = log;
    const size_t at = i < 500 ? random() % 60 : random() % log.size();
    flipped[at] = static_cast<char>(flipped[at] ^ 1 << random() % 8);
    const bool is_filling = WholeBytes(flipped) == log.size();
    EXPECT_EQ(read(flipped, &scan), records) << at;
    EXPECT_EQ(scan.mended, is_filling ? 0u : 1u) << at;
    const std::string cut = log.substr(0, random() % log.size());
    const std::vector<std::string> left = read(cut, &scan);
    EXPECT_EQ(scan.holes + scan.mended, 0u);
    EXPECT_TRUE(std::equal(left.begin(), left.end(), records.begin()));
  }
  std::string garbled = log;
  garbled.replace(10, 30, 30, 'x');
  EXPECT_EQ(read(garbled, &scan).size(), records.size() - 1);
  EXPECT_EQ(scan.holes, 1u);
}

}  // namespace
}  // namespace hearth
