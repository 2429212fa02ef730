#include "services/cli/base_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hearth {
namespace {

TEST(BaseModelNoteTest, NamesOfBaseModels_AreRecognized) {
  for (const char* path :
       {"gemma-3-270m", "models/gemma-3-270m.gguf", "google/gemma-3-1b-pt/",
        "gemma-3-1b-pt-qat-q4_0.gguf", "google_gemma-3-4b-pt-Q4_0.gguf", "/m/Gemma-3-27B",
        "/hub/models--google--gemma-3-1b-pt/snapshots/0123456789abcdef"}) {
    EXPECT_THAT(BaseModelNote(path), ::testing::HasSubstr(" is a base model: ")) << path;
  }
}

TEST(BaseModelNoteTest, OtherNames_GiveNoNote) {
  for (const char* path : {"", "model.gguf", "models/gemma-3-4b-it", "gemma-3-270m-it_q8_0.gguf",
                           "google_gemma-3-1b-it-qat-Q4_0.gguf", "gemma-3-270m-of-ours",
                           "/hub/models--google--gemma-3-1b-it/snapshots/0123456789abcdef"}) {
    EXPECT_EQ(BaseModelNote(path), "") << path;
  }
}

TEST(BaseModelNoteTest, GivenNameDecidesForNamelessFile) {
  EXPECT_THAT(BaseModelNote("/models/model", "gemma-3-270m"),
              ::testing::StartsWith("gemma-3-270m is a base model: "));
  EXPECT_EQ(BaseModelNote("/models/model", "gemma-3-270m-it"), "");
  EXPECT_EQ(BaseModelNote("/models/model", "lighthouse"), "");
  EXPECT_EQ(BaseModelNote("models/gemma-3-270m-it.gguf", "gemma-3-270m"), "");
  EXPECT_THAT(BaseModelNote("models/gemma-3-1b-pt.gguf", "lighthouse"),
              ::testing::StartsWith("gemma-3-1b-pt.gguf is a base model: "));
}

}  // namespace
}  // namespace hearth
