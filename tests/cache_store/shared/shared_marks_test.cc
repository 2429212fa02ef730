// What a store remembers of drops of all: what was done, as a text that is kept and read again.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_store/shared/tier/shared_drops.h"

namespace hearth {
namespace {

class SharedMarksTest : public ::testing::Test {
 protected:
  SharedDrops Drops() {
    return SharedDrops(
        [this](const std::string&) {
          ++drops_;
          return status_;
        },
        [this](const std::string& text) { kept_ = text; }, kept_);
  }

  int drops_ = 0;
  absl::Status status_;
  std::string kept_;
};

TEST_F(SharedMarksTest, WhatWasDoneIsDoneOnce) {
  SharedDrops drops = Drops();
  EXPECT_TRUE(drops.Hear("mark", "tenant", 0).ok());
  EXPECT_EQ(drops_, 0);
  EXPECT_TRUE(drops.Hear("mark", "tenant", 7).ok());
  EXPECT_TRUE(drops.Hear("mark", "tenant", 6).ok());
  EXPECT_EQ(drops_, 1);
  EXPECT_EQ(kept_, "mark 7\n");
  SharedDrops later = Drops();
  EXPECT_TRUE(later.Hear("mark", "tenant", 7).ok());
  EXPECT_EQ(drops_, 1);
  EXPECT_EQ(later.DoneOf("mark"), 7u);
  EXPECT_TRUE(later.Hear("mark", "tenant", 8).ok());
  EXPECT_TRUE(later.Hear("mark of another secret", "tenant", 5).ok());
  EXPECT_EQ(drops_, 3);
}

TEST_F(SharedMarksTest, WhatCouldNotBeDoneIsTriedByEachWhoLooks) {
  SharedDrops drops = Drops();
  status_ = absl::UnavailableError("loading");
  EXPECT_FALSE(drops.Hear("mark", "tenant", 7).ok());
  EXPECT_EQ(kept_, "");
  EXPECT_EQ(drops.DoneOf("mark"), 0u);
  EXPECT_EQ(drops.HeardOf("mark", "tenant"), 7u);
  EXPECT_TRUE(drops.IsHidden("tenant"));
  EXPECT_FALSE(drops.IsHidden("another"));
  EXPECT_EQ(drops_, 2);
  status_ = absl::OkStatus();
  EXPECT_FALSE(drops.IsHidden("tenant"));
  EXPECT_EQ(kept_, "mark 7\n");
  EXPECT_FALSE(drops.IsHidden("tenant"));
  EXPECT_EQ(drops_, 3);
}

TEST_F(SharedMarksTest, WhatIsKeptMayBeAnything) {
  kept_ = "mark 7\nmark\n 8 9\nother -1\nthird 3 3 3\n\n\xff\xfe 12x\nlast 4";
  SharedDrops drops = Drops();
  EXPECT_EQ(drops.DoneOf("mark"), 7u);
  EXPECT_EQ(drops.DoneOf("other"), 0u);
  EXPECT_EQ(drops.DoneOf("third"), 0u);
  EXPECT_EQ(drops.DoneOf("last"), 4u);
}

TEST_F(SharedMarksTest, TheOldestAreForgottenBeyondTheLimit) {
  SharedDrops drops([](const std::string&) { return absl::OkStatus(); });
  for (size_t i = 0; i <= SharedDrops::kMaxMarks; ++i) {
    drops.NoteDone(absl::StrCat("mark-", i), 100 + i);
  }
  EXPECT_EQ(drops.DoneOf("mark-0"), 0u);
  EXPECT_EQ(drops.DoneOf("mark-1"), 101u);
  EXPECT_EQ(drops.DoneOf(absl::StrCat("mark-", SharedDrops::kMaxMarks)),
            100 + SharedDrops::kMaxMarks);
}

}  // namespace
}  // namespace hearth
