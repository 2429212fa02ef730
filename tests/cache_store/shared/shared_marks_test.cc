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
        [this](const std::string&, bool force) {
          ++drops_;
          forced_ += force;
          return status_;
        },
        [this](const std::string& text) { kept_ = text; }, kept_);
  }

  int drops_ = 0, forced_ = 0;
  absl::Status status_;
  std::string kept_;
};

TEST_F(SharedMarksTest, WhatWasDoneIsDoneOnce) {
  SharedDrops drops = Drops();
  EXPECT_TRUE(drops.Hear("mark", "tenant", {0, 0}).ok());
  EXPECT_EQ(drops_, 0);
  EXPECT_TRUE(drops.Hear("mark", "tenant", {7, 0}).ok());
  EXPECT_TRUE(drops.Hear("mark", "tenant", {6, 0}).ok());
  EXPECT_EQ(drops_, 1);
  EXPECT_EQ(kept_, "mark 7\n");
  SharedDrops later = Drops();
  EXPECT_TRUE(later.Hear("mark", "tenant", {7, 0}).ok());
  EXPECT_EQ(drops_, 1);
  EXPECT_EQ(later.DoneOf("mark").number, 7u);
  EXPECT_TRUE(later.Hear("mark", "tenant", {8, 0}).ok());
  EXPECT_TRUE(later.Hear("mark of another secret", "tenant", {5, 0}).ok());
  EXPECT_EQ(drops_, 3);
}

TEST_F(SharedMarksTest, WhatIsPinnedIsDroppedOnceToo) {
  SharedDrops drops = Drops();
  EXPECT_TRUE(drops.Hear("mark", "tenant", {7, 6}).ok());
  EXPECT_EQ(forced_, 1);
  EXPECT_EQ(kept_, "mark 7 6\n");
  EXPECT_TRUE(drops.Hear("mark", "tenant", {8, 6}).ok());
  EXPECT_EQ(drops_, 2);
  EXPECT_EQ(forced_, 1);
  // One that took nothing pinned here was made after one that would have.
  drops.NoteDone("mark", {10, 0});
  SharedDrops later = Drops();
  EXPECT_TRUE(later.Hear("mark", "tenant", {10, 9}).ok());
  EXPECT_EQ(forced_, 2);
  EXPECT_EQ(later.DoneOf("mark").forced, 9u);
}

TEST_F(SharedMarksTest, OfAMarkOnlyItsOwnTextsAreRead) {
  for (const char* text : {"", " ", "0", "-1", "7 8", "7 -1", "7 ", " 7", "7 6 5", "x", "7x",
                           "4611686018427387905", "18446744073709551615"}) {
    EXPECT_FALSE(DropMark::Parse(text).has_value()) << text;
  }
  EXPECT_EQ(DropMark::Parse("7")->Text(), "7");
  EXPECT_EQ(DropMark::Parse("7 6")->Text(), "7 6");
}

TEST_F(SharedMarksTest, WhatCouldNotBeDoneIsTriedByEachWhoLooks) {
  SharedDrops drops = Drops();
  status_ = absl::UnavailableError("loading");
  EXPECT_FALSE(drops.Hear("mark", "tenant", {7, 0}).ok());
  EXPECT_EQ(kept_, "");
  EXPECT_EQ(drops.DoneOf("mark").number, 0u);
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
  EXPECT_EQ(drops.DoneOf("mark").number, 7u);
  EXPECT_EQ(drops.DoneOf("other").number, 0u);
  EXPECT_EQ(drops.DoneOf("third").number, 0u);
  EXPECT_EQ(drops.DoneOf("last").number, 4u);
}

TEST_F(SharedMarksTest, TheOldestAreForgottenBeyondTheLimit) {
  SharedDrops drops([](const std::string&, bool) { return absl::OkStatus(); });
  for (size_t i = 0; i <= SharedDrops::kMaxMarks; ++i) {
    drops.NoteDone(absl::StrCat("mark-", i), {100 + i, 0});
  }
  EXPECT_EQ(drops.DoneOf("mark-0").number, 0u);
  EXPECT_EQ(drops.DoneOf("mark-1").number, 101u);
  EXPECT_EQ(drops.DoneOf(absl::StrCat("mark-", SharedDrops::kMaxMarks)).number,
            100 + SharedDrops::kMaxMarks);
}

TEST_F(SharedMarksTest, TheOldestIsDoneOnceThoughThereIsNoRoomLeft) {
  for (size_t i = 0; i < SharedDrops::kMaxMarks; ++i) {
    absl::StrAppend(&kept_, "mark-", i, " ", 100 + i, "\n");
  }
  SharedDrops drops = Drops();
  for (int look = 0; look < 3; ++look) {
    EXPECT_TRUE(drops.Hear("the oldest", "tenant", {5, 0}).ok());
    EXPECT_EQ(drops_, 1) << "each look takes what came since the last one";
  }
}

}  // namespace
}  // namespace hearth
