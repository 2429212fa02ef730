// Copies of a fetch's slices on one and on several threads.
#include "services/inference/slice_copier.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "cache_store/memory/host_arena.h"
#include "proto/restore_rule.h"
#include "tests/services/store/small_layout.h"

namespace hearth {
namespace {

constexpr uint32_t kPrefixTokens = 256;  // 16 objects of one global layer, 2 of two local layers
constexpr size_t kSlices = 20;
constexpr int kThreads = 3;

// Slices in shared memory, and the plan of a fetch that copies them.
class SliceCopierTest : public testing::Test {
 protected:
  SliceCopierTest() {
    ArenaOptions options;
    options.capacity_bytes = options.ahead_bytes = options.slab_bytes = 2 << 20;
    options.shared = true;
    arena_ = *HostArena::Create(options);
    arena_->WaitUntilAhead();
    segment_ = *MappedSegment::Map(FileDescriptor(dup(arena_->segment_fd())));
    for (const ObjectId& id : NeededObjects(WideLayout(), kPrefixTokens)) {
      objects_.push_back(ObjectOf(WideLayout(), id));
      const KvObject& object = *objects_.back();
      const size_t bytes = WideLayout().SliceBytes(id.tokens);
      const std::byte* from = object.bytes.get();
      for (const uint32_t layer : WideLayout().LayersOf(id.group)) {
        memory_.push_back(arena_->Allocate(bytes));
        std::memcpy(memory_.back().get(), from, bytes);
        from += bytes;
        const SegmentRange range = *arena_->RangeOf(memory_.back().get(), bytes);
        plan_.add_objects(static_cast<uint32_t>(objects_.size() - 1));
        plan_.add_layers(layer);
        plan_.add_offsets(range.offset);
        plan_.add_generations(range.generation);
      }
      announced_.push_back({object.id, object.slice_digests});
    }
    EXPECT_EQ(memory_.size(), kSlices);
  }

  ObjectBuilder NewBuilder() const {
    return *ObjectBuilder::Create(WideLayout(), kPrefixTokens, announced_);
  }
  absl::Status Copy(SliceCopier* copier) const {
    ObjectBuilder builder = NewBuilder();
    return copier->Copy(plan_, *segment_, &builder);
  }
  // Copies on `threads` threads.
  absl::Status Copy(int threads, std::function<void(size_t)> between = nullptr) const {
    SliceCopier copier({threads, /*bytes_per_thread=*/1, std::move(between)});
    return Copy(&copier);
  }
  // Makes the announced digest of a slice of the plan wrong. Returns the error of its copy.
  std::string DamageDigest(int slice) {
    ObjectBuilder::Announced& object = announced_[plan_.objects(slice)];
    const std::vector<uint32_t> layers = WideLayout().LayersOf(object.id.group);
    const size_t index = plan_.layers(slice) == layers[0] ? 0 : 1;
    object.slice_digests[index] ^= 1;
    return absl::StrCat("slice ", index, " of the object at ", object.id.begin, " does not match");
  }
  void RepeatSlice(int slice) {
    plan_.add_objects(plan_.objects(slice));
    plan_.add_layers(plan_.layers(slice));
    plan_.add_offsets(plan_.offsets(slice));
    plan_.add_generations(plan_.generations(slice));
  }

  const std::thread::id main_ = std::this_thread::get_id();
  std::shared_ptr<HostArena> arena_;
  std::shared_ptr<const MappedSegment> segment_;
  std::vector<std::shared_ptr<const KvObject>> objects_;
  std::vector<std::shared_ptr<std::byte>> memory_;  // of each slice
  std::vector<ObjectBuilder::Announced> announced_;
  v1::SharedSlices plan_;
};

TEST_F(SliceCopierTest, LargeFetchUsesSeveralThreads) {
  absl::Mutex mu;
  std::set<std::thread::id> threads;
  absl::Barrier barrier(kThreads);
  SliceCopier copier({kThreads, /*bytes_per_thread=*/1, [&](size_t slice) {
                        // the first slices are copied by different threads
                        if (slice < kThreads) barrier.Block();
                        absl::MutexLock lock(&mu);
                        threads.insert(std::this_thread::get_id());
                      }});
  ObjectBuilder builder = NewBuilder();
  const absl::Status copied = copier.Copy(plan_, *segment_, &builder);
  ASSERT_TRUE(copied.ok()) << copied;
  EXPECT_EQ(threads.size(), size_t{kThreads});
  const auto taken = builder.Take();
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_EQ(taken->size(), objects_.size());
  for (size_t i = 0; i < objects_.size(); ++i) {
    EXPECT_TRUE(SameBytes(*(*taken)[i], *objects_[i])) << i;
    EXPECT_EQ((*taken)[i]->slice_digests, objects_[i]->slice_digests) << i;
  }
}

TEST_F(SliceCopierTest, SmallFetchUsesCallingThread) {
  size_t slices = 0;
  SliceCopier copier({kThreads, SliceCopierOptions::kBytesPerThread, [&](size_t slice) {
                        EXPECT_EQ(slice, slices++);
                        EXPECT_EQ(std::this_thread::get_id(), main_);
                      }});
  EXPECT_TRUE(Copy(&copier).ok());
  EXPECT_EQ(slices, kSlices);
}

TEST_F(SliceCopierTest, BusyThreadsAreNotAwaited) {
  absl::Notification is_busy, may_end;
  std::atomic<bool> is_first{true};
  std::atomic<size_t> slices_here{0};
  SliceCopier copier({kThreads, /*bytes_per_thread=*/1, [&](size_t) {
                        if (std::this_thread::get_id() == main_) ++slices_here;
                        if (!is_first.exchange(false)) return;
                        is_busy.Notify();
                        may_end.WaitForNotification();
                      }});
  std::thread other([&] { EXPECT_TRUE(Copy(&copier).ok()); });
  is_busy.WaitForNotification();
  EXPECT_TRUE(Copy(&copier).ok());
  EXPECT_EQ(slices_here, kSlices);
  may_end.Notify();
  other.join();
}

TEST_F(SliceCopierTest, SliceReusedDuringCopyIsAborted) {
  for (const int threads : {1, kThreads}) {
    const absl::Status copied = Copy(threads, [&](size_t slice) {
      if (slice == 5) memory_[5] = nullptr;
    });
    EXPECT_TRUE(absl::IsAborted(copied)) << copied;
    memory_[5] = arena_->Allocate(WideLayout().SliceBytes(16));
    ASSERT_EQ(arena_->RangeOf(memory_[5].get(), 1)->offset, plan_.offsets(5));
    const absl::Status late = Copy(threads);
    EXPECT_TRUE(absl::IsAborted(late)) << late;
    // the next turn copies the slice that is there now
    std::memcpy(memory_[5].get(), objects_[plan_.objects(5)]->bytes.get(),
                WideLayout().SliceBytes(16));
    plan_.set_generations(5, arena_->RangeOf(memory_[5].get(), 1)->generation);
    EXPECT_TRUE(Copy(threads).ok());
  }
}

TEST_F(SliceCopierTest, FirstOfTwoWrongDigestsIsReported) {
  const std::string expected = DamageDigest(4);
  DamageDigest(9);
  // The first wrong slice is verified last.
  absl::Notification is_copied;
  const absl::Status copied = Copy(kThreads, [&](size_t slice) {
    if (slice == 9) is_copied.Notify();
    if (slice == 4) is_copied.WaitForNotification();
  });
  EXPECT_TRUE(absl::IsDataLoss(copied)) << copied;
  EXPECT_TRUE(absl::StartsWith(copied.message(), expected)) << copied;
}

TEST_F(SliceCopierTest, SliceAnnouncedTwiceIsRefused) {
  RepeatSlice(2);
  for (const int threads : {1, kThreads}) {
    const absl::Status copied = Copy(threads);
    EXPECT_TRUE(absl::IsFailedPrecondition(copied)) << copied;
    EXPECT_TRUE(absl::StrContains(copied.message(), "[0, +8192) after 8192 of 8192 bytes"))
        << copied;
  }
  // An error of an earlier slice comes first.
  DamageDigest(19);
  for (const int threads : {1, kThreads}) EXPECT_TRUE(absl::IsDataLoss(Copy(threads)));
}

TEST_F(SliceCopierTest, UnknownSliceIsRefused) {
  const v1::SharedSlices right = plan_;
  plan_.set_objects(3, 99);
  EXPECT_TRUE(absl::IsFailedPrecondition(Copy(kThreads)));
  plan_ = right;
  plan_.set_layers(3, 0);  // a local layer
  EXPECT_TRUE(absl::IsFailedPrecondition(Copy(kThreads)));
  plan_ = right;
  plan_.mutable_generations()->RemoveLast();
  EXPECT_TRUE(absl::IsFailedPrecondition(Copy(kThreads)));
  plan_ = right;
  plan_.set_offsets(3, segment_->layout().data_bytes);
  EXPECT_TRUE(absl::IsOutOfRange(Copy(kThreads)));
}

}  // namespace
}  // namespace hearth
