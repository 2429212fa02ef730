#include "services/hearthctl/chat/key_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace hearth {
namespace {

constexpr char kBegin[] = "\x1b[200~", kEnd[] = "\x1b[201~";

// A terminal at which `bytes` are typed, and then its end.
class KeyReaderTest : public ::testing::Test {
 protected:
  std::string Typed(const std::string& bytes) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    std::thread typist([&] {
      size_t written = 0;
      while (written < bytes.size()) {
        const ssize_t count = write(ends[1], bytes.data() + written, bytes.size() - written);
        ASSERT_GT(count, 0);
        written += static_cast<size_t>(count);
      }
      close(ends[1]);
    });
    KeyReader keys(ends[0], &pasted_);
    std::string shown;
    wchar_t character = 0;
    while (keys.Next(&character)) shown.push_back(static_cast<char>(character));
    typist.join();
    close(ends[0]);
    return shown;
  }

  PastedTexts pasted_;
};

TEST_F(KeyReaderTest, APasteBeyondTheLimitIsLeftOutAndWhatFollowsIsRead) {
  const std::string most(KeyReader::kMaxPasteBytes, 'x'),
      mark("[a paste of more than 12 MiB: left out]");
  for (const size_t more : {size_t{1}, KeyReader::kMaxPasteBytes + 5000}) {
    const std::string shown =
        Typed("a" + std::string(kBegin) + most + std::string(more, '\n') + kEnd + "b");
    EXPECT_EQ(shown, "a" + mark + "b");
    EXPECT_EQ(pasted_.Expand(shown), "ab");
  }
  EXPECT_EQ(pasted_.Expand(Typed(kBegin + most + kEnd)), most);
}

TEST_F(KeyReaderTest, ALongLineIsShownAsAMark) {
  const std::string most(PastedTexts::kMaxShownBytes, 'x');
  EXPECT_EQ(Typed(kBegin + most + kEnd), most);
  EXPECT_EQ(Typed(kBegin + most + "y" + kEnd), "[pasted 1: 1 line]");
}

TEST_F(KeyReaderTest, APastesEndIsFoundWhereverItIsCut) {
  // Pieces of a pipe are 4,096 bytes long.
  for (size_t length = 4080; length < 4097; ++length) {
    const std::string text(length, 'y');
    EXPECT_EQ(pasted_.Expand(Typed(kBegin + text + kEnd + "z")), text + "z");
  }
}

}  // namespace
}  // namespace hearth
