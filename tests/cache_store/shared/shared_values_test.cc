// Values of the shared engine: opening a sealed value gives its contents, and invalid values are
// rejected.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cache_store/shared/shared_object.h"
#include "cache_store/shared/shared_space.h"

namespace hearth {
namespace {

std::string Secret(char first = 0) {
  std::string secret(32, '\0');
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<char>(first + char(i));
  return secret;
}

Digest Key(uint64_t number) { return Sha256(absl::StrCat("segment ", number)); }

// Returns the shape of an object of two slices.
SharedShape Shape(uint64_t slice_bytes) {
  SharedShape shape;
  shape.id = {16, 16, LayerGroup::kLocal};
  for (uint32_t i = 0; i < 16; ++i) shape.token_ids.push_back(100 + i);
  shape.cut_offsets = {5, 9};
  shape.slices = 2;
  shape.slice_bytes = slice_bytes;
  return shape;
}

std::vector<SliceView> Slices(const SharedShape& shape) {
  std::vector<SliceView> views;
  for (uint32_t slice = 0; slice < shape.slices; ++slice) {
    std::vector<std::byte> bytes(shape.slice_bytes);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte((i * 7 + slice + i / 251) % 256);
    views.push_back(CopySlice(bytes));
  }
  return views;
}

SharedFacts Facts() { return {{0x0123456789abcdef, 0xfedcba9876543210}, 1700000000}; }

TEST(SharedValues, RoundTripKeepsAnyLength) {
  const SharedSpace space(Secret(), "tenant", 3);
  const uint64_t text = SharedSpace::kMaxTextBytes, head = Shape(1).head_bytes();
  for (const uint64_t slice_bytes :
       {uint64_t{1}, uint64_t{256}, uint64_t{393'216}, uint64_t{524'288}, (text - head) / 2,
        (text - head) / 2 + 1, text, 3 * text / 2}) {
    const SharedShape shape = Shape(slice_bytes);
    const std::vector<SliceView> views = Slices(shape);
    std::vector<std::vector<std::byte>> slices(2, std::vector<std::byte>(slice_bytes));
    for (uint32_t part = 0; part < shape.parts(); ++part) {
      const std::string name = space.PartName(Key(1), shape.id.group, part);
      const std::string value = space.Seal(name, shape.TextOf(part, Facts(), views));
      EXPECT_LE(value.size(), SharedSpace::kMaxValueBytes);
      const auto opened = space.Open(name, value);
      ASSERT_TRUE(opened.ok()) << opened.status();
      if (part == 0) {
        const auto facts = shape.ParseHead(*opened);
        ASSERT_TRUE(facts.ok()) << facts.status();
        EXPECT_EQ(facts->slice_digests, Facts().slice_digests);
        EXPECT_EQ(facts->expires_unix_s, Facts().expires_unix_s);
      }
      EXPECT_EQ(opened->size(), shape.TextBytes(part));
      std::vector<std::byte> head(part == 0 ? shape.head_bytes() : 0);
      auto pieces = shape.PiecesOf(part, {slices[0].data(), slices[1].data()});
      pieces.insert(pieces.begin(), absl::MakeSpan(head));
      std::string seen;
      const auto see = [&](absl::Span<const std::byte> block) {
        seen.append(reinterpret_cast<const char*>(block.data()), block.size());
      };
      ASSERT_TRUE(space.OpenInto(name, value, pieces, see).ok());
      EXPECT_TRUE(seen == *opened);
      pieces.pop_back();
      EXPECT_TRUE(absl::IsDataLoss(space.OpenInto(name, value, pieces, see))) << "wrong length";
    }
    for (uint32_t slice = 0; slice < 2; ++slice) {
      EXPECT_TRUE(std::equal(slices[slice].begin(), slices[slice].end(), views[slice].bytes.begin(),
                             views[slice].bytes.end()));
    }
  }
  EXPECT_EQ(Shape((text - head) / 2).parts(), 1);
  EXPECT_EQ(Shape((text - head) / 2 + 1).parts(), 2);
  EXPECT_EQ(Shape(3 * text / 2).parts(), 4);
}

// Returns the bytes that jemalloc, the allocator of Redis, allocates for `bytes`. It has four sizes
// from each power of two to the next.
uint64_t Allocated(uint64_t bytes) {
  uint64_t power = 1024;
  while (2 * power < bytes) power *= 2;
  return (bytes + power / 4 - 1) / (power / 4) * (power / 4);
}

TEST(SharedValues, PartSizesFitAllocatorSizeClasses) {
  for (uint64_t slice_bytes = 64 << 10; slice_bytes < (5 << 20); slice_bytes += 65'536 / 4) {
    const SharedShape shape = Shape(slice_bytes);
    uint64_t allocated = 0, text_bytes = 0;
    for (uint32_t part = 0; part < shape.parts(); ++part) {
      text_bytes += shape.TextBytes(part);
      allocated += Allocated(shape.TextBytes(part) + SharedSpace::kSealBytes + 16);
    }
    EXPECT_EQ(text_bytes, (shape.head_bytes() + shape.object_bytes()));
    EXPECT_LE(shape.parts(), text_bytes / SharedSpace::kMaxTextBytes + 4);
    EXPECT_LE(static_cast<double>(allocated), 1.015 * static_cast<double>(shape.object_bytes()))
        << slice_bytes;
  }
}

TEST(SharedValues, ValueNamesAreUnique) {
  std::set<std::string> names;
  size_t count = 0;
  for (const char secret : {0, 1}) {
    for (const char* tenant : {"a", "b"}) {
      names.insert(SharedSpace(Secret(secret), tenant, 0).NumbersName());
      ++count;
      for (const uint64_t generation : {0, 1}) {
        const SharedSpace space(Secret(secret), tenant, generation);
        for (const uint64_t key : {1, 2}) {
          for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
            for (const uint32_t part : {0, 1}) {
              names.insert(space.PartName(Key(key), group, part));
              ++count;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(names.size(), count);
  for (const std::string& name : names) EXPECT_EQ(name.substr(0, 3), "h1:");
  EXPECT_EQ(SharedSpace(Secret(), "a", 0).NumbersName(),
            SharedSpace(Secret(), "a", 7, 7).NumbersName());
}

TEST(SharedValues, NumbersParserIsStrict) {
  const SharedNumbers numbers{9, 7};
  EXPECT_EQ(SharedNumbers::Parse(numbers.Text()), numbers);
  for (const SharedNumbers& wrong :
       {SharedNumbers{0, 0}, SharedNumbers{6, 7}, SharedNumbers{SharedNumbers::kMax + 1, 0}}) {
    EXPECT_FALSE(SharedNumbers::Parse(wrong.Text()).has_value()) << wrong.generation;
  }
  EXPECT_FALSE(SharedNumbers::Parse(numbers.Text() + "x").has_value());
  EXPECT_FALSE(SharedNumbers::Parse("").has_value());
}

TEST(SharedValues, EqualTextsSealDifferently) {
  const SharedSpace space(Secret(), "tenant", 0);
  const std::string name = space.PartName(Key(1), LayerGroup::kGlobal, 0);
  EXPECT_NE(space.Seal(name, "text"), space.Seal(name, "text"));
}

// Tries all changes that a client can make without the secret if it can read and write the whole
// engine.
TEST(SharedValues, TamperedValuesAreRejected) {
  const SharedSpace space(Secret(), "tenant", 4);
  const SharedShape shape = Shape(64);
  std::mt19937_64 random(20261123);
  struct Written {
    std::string name, value;
  };
  std::vector<Written> written;
  for (uint64_t key = 0; key < 200; ++key) {
    const std::string name = space.PartName(Key(key), shape.id.group, 0);
    written.push_back({name, space.Seal(name, shape.TextOf(0, Facts(), Slices(shape)))});
  }
  const auto draw = [&](size_t below) { return random() % below; };
  int rejected = 0;
  constexpr int kTries = 10000;
  for (int i = 0; i < kTries; ++i) {
    const Written& one = written[draw(written.size())];
    const Written& other = written[draw(written.size())];
    std::string name = one.name, value = one.value;
    uint64_t generation = 4;
    std::string tenant = "tenant";
    switch (i % 7) {
      case 0:  // values are swapped
        if (one.name == other.name) name += "0";
        value = other.value;
        break;
      case 1:
        value[draw(value.size())] ^= static_cast<char>(1 << draw(8));
        break;
      case 2:
        value.resize(draw(value.size()));
        break;
      case 3:  // the beginning of one value and the end of another
        value.replace(value.size() / 2, std::string::npos, other.value, other.value.size() / 2);
        if (one.name == other.name) value.back() ^= 1;
        break;
      case 4:  // an old value is written again after a drop
        generation = 5 + draw(3);
        break;
      case 5:
        tenant = absl::StrCat("tenant", draw(9));
        break;
      default:
        value.append(1 + draw(64), '\0');
    }
    if (!SharedSpace(Secret(), tenant, generation).Open(name, value).ok()) ++rejected;
  }
  EXPECT_EQ(rejected, kTries);
  for (const Written& one : written) ASSERT_TRUE(space.Open(one.name, one.value).ok());
}

TEST(SharedValues, HeadOfOtherObjectIsRejected) {
  const SharedShape shape = Shape(64);
  const std::string text = shape.TextOf(0, Facts(), Slices(shape));
  ASSERT_TRUE(shape.ParseHead(text).ok());
  std::vector<SharedShape> others(7, shape);
  others[0].id.begin = 32;
  others[1].token_ids[15] += 1;
  others[2].id.group = LayerGroup::kGlobal;
  others[3].cut_offsets[1] = 10;
  others[4].slice_bytes = 65;
  others[5].cut_offsets.pop_back();
  others[6].slices = 1;
  for (const SharedShape& other : others) {
    EXPECT_EQ(other.ParseHead(text).status().code(), absl::StatusCode::kDataLoss);
  }
  for (size_t bytes = 0; bytes < shape.head_bytes(); ++bytes) {
    ASSERT_FALSE(shape.ParseHead(text.substr(0, bytes)).ok());
  }
  // Each flipped bit of the head is rejected, except in the expiry and the digests.
  const size_t free_begin = 36, free_end = 44, digests = shape.head_bytes() - 16;
  for (size_t bit = 0; bit < 8 * digests; ++bit) {
    if (bit / 8 >= free_begin && bit / 8 < free_end) continue;
    std::string changed = text;
    changed[bit / 8] ^= static_cast<char>(1 << bit % 8);
    ASSERT_FALSE(shape.ParseHead(changed).ok()) << bit;
  }
}

// All values of a chunk are on one shard, so a lost shard loses whole chunks. The chunks of a
// conversation are on all shards.
TEST(SharedValues, ChunkValuesShareOneShard) {
  const SharedSpace space(Secret(), "default", 1);
  const auto shard_of = [](const std::string& name) {
    const size_t open = name.find('{'), close = name.find('}');
    EXPECT_LT(open, close) << name;
    return name.substr(open, close - open);
  };
  const std::string shard = shard_of(space.PartName(Key(1), LayerGroup::kGlobal, 0));
  EXPECT_EQ(shard, shard_of(space.PartName(Key(1), LayerGroup::kGlobal, 1)));
  EXPECT_EQ(shard, shard_of(space.PartName(Key(1), LayerGroup::kLocal, 7)));
  EXPECT_NE(shard, shard_of(space.PartName(Key(2), LayerGroup::kGlobal, 0)));
}

// Stores of different releases may share an engine, so the format must not change.
TEST(SharedValues, ValuesMatchGoldenFile) {
  const SharedSpace space(Secret(), "default", 1);
  const SharedShape shape = Shape(16);
  std::string found;
  absl::StrAppend(&found, "numbers ", space.NumbersName(), "\n");
  absl::StrAppend(&found, "global ", space.PartName(Key(1), LayerGroup::kGlobal, 12), "\n");
  const std::string name = space.PartName(Key(1), LayerGroup::kLocal, 0);
  const std::string text = shape.TextOf(0, Facts(), Slices(shape));
  absl::StrAppend(&found, "local ", name, "\n");
  absl::StrAppend(&found, "text ", absl::BytesToHexString(text), "\n");
  absl::StrAppend(&found, "value ",
                  absl::BytesToHexString(space.SealWith("twelve bytes", name, text)), "\n");
  std::ifstream file(HEARTH_SHARED_GOLDEN);
  const std::string golden((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(found, golden);
}

}  // namespace
}  // namespace hearth
