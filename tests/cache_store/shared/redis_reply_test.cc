#include "cache_store/shared/redis/redis_reply.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cache_store/shared/redis/redis_options.h"
#include "cache_store/shared/redis/slot_map.h"

namespace hearth {
namespace {

using Kind = RedisReply::Kind;

constexpr ReplyLimits kWide = {uint64_t{1} << 20, 1000};

std::string Text(const std::string& content) {
  return absl::StrCat("$", content.size(), "\r\n", content, "\r\n");
}

// Parses all replies in `bytes`, which arrive in pieces of `piece` bytes.
std::vector<RedisReply> ReadAll(absl::string_view bytes, size_t piece, const ReplyLimits& limits,
                                TextPool* texts) {
  ReplyReader reader(texts);
  std::vector<RedisReply> replies;
  while (!bytes.empty()) {
    const absl::Span<char> room = reader.Room();
    size_t count = std::min(piece, bytes.size());
    // Use both ways to give bytes to the reader: Room() and Feed().
    if (!room.empty() && count % 2 == 1) {
      count = std::min(count, room.size());
      std::copy_n(bytes.data(), count, room.data());
      reader.Filled(count);
    } else {
      reader.Feed(bytes.data(), count);
    }
    bytes.remove_prefix(count);
    while (reader.HasBytes()) {
      absl::StatusOr<std::optional<RedisReply>> next = reader.Next(limits);
      EXPECT_TRUE(next.ok()) << next.status();
      if (!next.ok() || !next->has_value()) break;
      replies.push_back(*std::move(*next));
    }
  }
  EXPECT_FALSE(reader.HasBytes());
  return replies;
}

std::vector<RedisReply> ReadAll(absl::string_view bytes, size_t piece, const ReplyLimits& limits) {
  TextPool texts;
  return ReadAll(bytes, piece, limits, &texts);
}

absl::Status FirstError(const std::string& bytes, const ReplyLimits& limits) {
  TextPool texts;
  ReplyReader reader(&texts);
  reader.Feed(bytes.data(), bytes.size());
  return reader.Next(limits).status();
}

TEST(ReplyReader, ParsesEachKindInPieces) {
  const std::string bytes =
      "+OK\r\n-ERR no\r\n:-7\r\n$-1\r\n$0\r\n\r\n*2\r\n:1\r\n*1\r\n$3\r\na\r\n\r\n*-1\r\n*0\r\n";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    const std::vector<RedisReply> replies = ReadAll(bytes, piece, kWide);
    ASSERT_EQ(replies.size(), 8u) << piece;
    EXPECT_EQ(replies[0].kind, Kind::kStatus);
    EXPECT_EQ(replies[1].kind, Kind::kError);
    EXPECT_EQ(replies[1].text, "ERR no");
    EXPECT_EQ(replies[2].integer, -7);
    EXPECT_EQ(replies[3].kind, Kind::kNil);
    EXPECT_EQ(replies[4].kind, Kind::kText);
    EXPECT_EQ(replies[4].text, "");
    ASSERT_EQ(replies[5].elements.size(), 2u);
    EXPECT_EQ(replies[5].elements[0].integer, 1);
    EXPECT_EQ(replies[5].elements[1].elements.at(0).text, "a\r\n");
    EXPECT_EQ(replies[6].kind, Kind::kNil);
    EXPECT_EQ(replies[7].kind, Kind::kArray);
  }
}

TEST(ReplyReader, ParsesTextsOfAnyLength) {
  std::minstd_rand lots(7);
  std::vector<std::string> contents;
  std::string bytes;
  for (const size_t size : {1u, 16383u, 16384u, 16385u, 3u, 65536u, 200000u, 100000u, 0u, 70000u}) {
    std::string content(size, '\0');
    for (char& c : content) c = static_cast<char>(lots());
    bytes += Text(content) + ":1\r\n";
    contents.push_back(std::move(content));
  }
  for (const size_t piece : {size_t{7}, size_t{4099}, size_t{16391}, size_t{65536}, bytes.size()}) {
    const std::vector<RedisReply> replies = ReadAll(bytes, piece, kWide);
    ASSERT_EQ(replies.size(), 2 * contents.size()) << piece;
    for (size_t i = 0; i < contents.size(); ++i) {
      EXPECT_TRUE(replies[2 * i].text == contents[i]) << piece << " " << i;
      EXPECT_EQ(replies[2 * i + 1].integer, 1);
    }
  }
}

TEST(ReplyReader, OversizedReplyIsRefused) {
  const ReplyLimits limits = {20000, 3};
  EXPECT_TRUE(FirstError(Text(std::string(20000, 'x')), limits).ok());
  EXPECT_FALSE(FirstError(Text(std::string(20001, 'x')), limits).ok());
  EXPECT_FALSE(FirstError("$20001\r\n" + std::string(20100, 'x'), limits).ok());
  EXPECT_TRUE(FirstError("*3\r\n:1\r\n:1\r\n:1\r\n", limits).ok());
  EXPECT_FALSE(FirstError("*4\r\n", limits).ok());
  EXPECT_FALSE(FirstError("*2\r\n:1\r\n*2\r\n", limits).ok()) << "the limit is of all together";
  EXPECT_FALSE(
      FirstError("*2\r\n" + Text(std::string(15000, 'x')) + Text(std::string(15000, 'x')), limits)
          .ok());
  std::string nested;
  for (int i = 0; i < 8; ++i) nested += "*1\r\n";
  EXPECT_TRUE(FirstError(nested + ":1\r\n", kWide).ok());
  EXPECT_FALSE(FirstError(nested + "*1\r\n:1\r\n", kWide).ok()) << "arrays in arrays in arrays";
  EXPECT_TRUE(FirstError("-" + std::string(1000, 'x') + "\r\n", {}).ok());
  EXPECT_FALSE(FirstError("-" + std::string(1100, 'x') + "\r\n", {}).ok());
}

TEST(ReplyReader, LongReplyTextsReuseMemory) {
  TextPool texts;
  const std::string first(20000, 'a'), second(19000, 'b');
  std::vector<RedisReply> replies = ReadAll(Text(first), 4099, kWide, &texts);
  const char* const memory = replies.at(0).text.data();
  texts.Give(std::move(replies[0].text));
  replies = ReadAll(Text(second), 4099, kWide, &texts);
  EXPECT_EQ(replies.at(0).text.data(), memory);
  EXPECT_TRUE(replies[0].text == second);
}

TEST(TextPool, PooledTextMemoryIsLimited) {
  TextPool texts;
  constexpr size_t kLong = TextPool::kLongestBytes;
  for (int i = 0; i < 50; ++i) texts.Give(std::string(kLong, 'x'));
  texts.Give(std::string(100, 'x'));
  texts.Give(std::string(kLong + 1, 'x'));
  EXPECT_LT(texts.Take(20000).capacity(), 50000u) << "a long one would be held by a short one";
  size_t kept = 0;
  while (texts.Take(kLong - kLong / 4).capacity() == kLong) ++kept;
  EXPECT_EQ(kept, TextPool::kKeptTexts);
}

TEST(ReplyReader, UnterminatedTextIsRefused) {
  EXPECT_FALSE(FirstError("$20000\r\n" + std::string(20002, 'x'), kWide).ok());
}

TEST(SlotMap, MapTakesPrimariesAndSenderHost) {
  const std::string replica = "*3\r\n$7\r\nreplica\r\n:9\r\n$2\r\nid\r\n";
  const std::string bytes = "*4\r\n*4\r\n:0\r\n:99\r\n*3\r\n$1\r\na\r\n:7000\r\n$2\r\nid\r\n" +
                            replica +
                            "*3\r\n:100\r\n:199\r\n*3\r\n$-1\r\n:7001\r\n$2\r\nid\r\n"
                            "*3\r\n:200\r\n:299\r\n*3\r\n$0\r\n\r\n:7002\r\n$2\r\nid\r\n"
                            "*3\r\n:16383\r\n:16383\r\n*3\r\n$1\r\na\r\n:7000\r\n$2\r\nid\r\n";
  const std::vector<RedisReply> replies = ReadAll(bytes, bytes.size(), kSlotMapLimits);
  ASSERT_EQ(replies.size(), 1u);
  SlotMap map = SlotMap::FromReply(replies[0], {"teller", 6379}).value();
  EXPECT_EQ(map.primaries().size(), 3u);
  EXPECT_EQ(map.Owner(0)->Text(), "a:7000");
  EXPECT_EQ(map.Owner(99)->Text(), "a:7000");
  EXPECT_EQ(map.Owner(100)->Text(), "teller:7001");
  EXPECT_EQ(map.Owner(299)->Text(), "teller:7002");
  EXPECT_EQ(map.Owner(300), nullptr);
  EXPECT_EQ(map.Owner(16383)->Text(), "a:7000");
  map.Assign(300, {"b", 1});
  EXPECT_EQ(map.Owner(300)->Text(), "b:1");
  EXPECT_EQ(map.Owner(301), nullptr);
}

TEST(ErrorReply, RedirectWithoutHostUsesSender) {
  const NodeAddress teller = {"teller", 6379};
  EXPECT_EQ(TargetOf("MOVED 7 10.0.0.2:7001", teller)->Text(), "10.0.0.2:7001");
  EXPECT_EQ(TargetOf("ASK 7 ::1:7001", teller)->Text(), "[::1]:7001");
  EXPECT_EQ(TargetOf("MOVED 7 :7001", teller)->Text(), "teller:7001");
  EXPECT_FALSE(TargetOf("MOVED 7", teller).has_value());
}

TEST(RedisUrl, ParsesNodesAndRefusesPasswords) {
  const RedisOptions options = ParseRedisUrl("redis://a:7000,10.0.0.1:7001,[::1]:7002").value();
  EXPECT_FALSE(options.use_tls);
  ASSERT_EQ(options.addresses.size(), 3u);
  EXPECT_EQ(options.addresses[0].Text(), "a:7000");
  EXPECT_EQ(options.addresses[2].host, "::1");
  EXPECT_EQ(options.addresses[2].Text(), "[::1]:7002");
  EXPECT_TRUE(ParseRedisUrl("rediss://cache.example:6379/").value().use_tls);
  const absl::Status with_password = ParseRedisUrl("redis://:hunter2@a:1").status();
  EXPECT_TRUE(absl::IsInvalidArgument(with_password));
  EXPECT_EQ(std::string(with_password.message()).find("hunter2"), std::string::npos);
  for (const char* url :
       {"", "redis://", "http://a:1", "redis://a", "redis://a:0", "redis://a:65536", "redis://:1",
        "redis://user:secret@a:1", "redis://a:1,", "redis://a:1/2", "redis://a b:1",
        "redis://[::1:1", "redis://::1]:1", "redis://[]:1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseRedisUrl(url).status())) << url;
  }
}

}  // namespace
}  // namespace hearth
