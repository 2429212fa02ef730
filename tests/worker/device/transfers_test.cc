// Tests copies between host memory and KV blocks that run while a device runs steps: events,
// lifetimes, bits, failures. The emulated device performs a transfer as late as its event allows.
#include "worker/model/invariant/transfers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/restore_rule.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/device/emulated_device.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

using Bytes = std::shared_ptr<std::byte[]>;
constexpr int kChunk = 16;

Bytes Filled(size_t bytes, int value) {
  Bytes memory(new std::byte[bytes]);
  std::memset(memory.get(), value, bytes);
  return memory;
}

// 64 bytes on an emulated device, and the transfer of a pattern to them.
struct OneTransfer {
  OneTransfer() { device.StartTransfer(CopyWay::kIn, to, pattern.get(), {64}); }
  int First() {
    std::byte first[64];
    device.CopyOut(first, to, sizeof(first));
    return static_cast<int>(first[0]);
  }
  EmulatedDevice device;
  Bytes pattern = Filled(64, 7);
  void* const to = device.Allocate(64);
};

TEST(EmulatedTransfers, TransferHappensAtItsEvent) {
  OneTransfer one;
  const auto first = one.device.RecordTransfers();
  const Bytes other = Filled(64, 9);
  one.device.StartTransfer(CopyWay::kIn, one.to, other.get(), {64});
  const auto second = one.device.RecordTransfers();
  EXPECT_EQ(one.First(), 0xff) << "no launch waits for the event";
  one.device.MakeLaunchesWait(*first);
  EXPECT_EQ(one.First(), 7);
  std::thread([&] { EXPECT_TRUE(second->Wait()); }).join();
  EXPECT_EQ(one.First(), 9);
  EXPECT_EQ(one.device.error(), "");
}

TEST(EmulatedTransfers, ChangedSourceIsError) {
  OneTransfer one;
  const auto event = one.device.RecordTransfers();
  one.pattern[63] = std::byte{8};
  EXPECT_FALSE(event->Wait());
  one.First();
  EXPECT_EQ(one.device.error(), "a transfer: its source changed before it ended");
}

TEST(EmulatedTransfers, FreedTargetIsError) {
  OneTransfer one;
  one.device.Free(one.to);
  one.device.MakeLaunchesWait(*one.device.RecordTransfers());
  one.device.Wait();
  EXPECT_EQ(one.device.error(), "a transfer: its memory was freed");
}

// Records the number of performed transfers at each launch.
class WatchedDevice : public EmulatedDevice {
 public:
  void Launch(int program, const void* arguments, int blocks) override {
    EmulatedDevice::Launch(program, arguments, blocks);
    const int performed = counts().performed;
    if (seen.empty() || seen.back() != performed) seen.push_back(performed);
  }
  std::vector<int> seen;
};

// The KV of a prefix in host memory.
struct SavedObject {
  ObjectId id;
  size_t size;
  Bytes bytes;
  std::unique_ptr<RowCopies> copies;  // null: on the CPU
};
using Saved = std::vector<SavedObject>;

std::vector<int32_t> Text(int tokens, int seed = 1) {
  std::vector<int32_t> text;
  for (int i = 0; i < tokens; ++i) text.push_back((seed * 31 + i * 7) % 160);
  return text;
}

class TransfersTest : public testing::Test {
 protected:
  TransfersTest() {
    static const std::string* const dir = [] {
      TinyGeometry geometry;
      geometry.layer_types = "lgl";
      geometry.window = 24;
      geometry.bfloat16 = true;
      return new std::string(NewTinyCheckpoint(geometry, "transfers"));
    }();
    InvariantGemmaOptions options{1, kChunk};
    cpu_ = InvariantGemma::Load(*dir, options).value();
    options.device = device_;
    gemma_ = InvariantGemma::Load(*dir, options).value();
  }

  // Appends `text` from the end of `kv` to `end`. Returns the logits of the last token.
  static std::vector<float> Step(const InvariantGemma& gemma, const std::vector<int32_t>& text,
                                 int end, InvariantKv* kv) {
    std::vector<float> logits;
    const auto step = absl::MakeSpan(text).subspan(static_cast<size_t>(kv->length()),
                                                   static_cast<size_t>(end - kv->length()));
    EXPECT_TRUE(gemma.Step(kv, step, 1, &logits).ok());
    return logits;
  }
  // Starts to copy the KV out of a device; on the CPU, copies it.
  static Saved Save(const InvariantKv& kv) {
    Saved saved;
    const KvLayout& layout = kv.layout();
    for (const ObjectId& id : NeededObjects(layout, static_cast<uint32_t>(kv.length()))) {
      const size_t size = layout.ObjectBytes(id.tokens, id.group);
      SavedObject object{id, size, Filled(size, 0), nullptr};
      const int begin = static_cast<int>(id.begin), end = begin + static_cast<int>(id.tokens);
      std::byte* slice = object.bytes.get();
      if (kv.is_on_device()) object.copies = kv.StartCopyOut(id, begin, end, slice);
      for (const uint32_t layer : layout.LayersOf(id.group)) {
        if (kv.is_on_device()) break;
        kv.CopyOut(static_cast<int>(layer), begin, end, begin, end - begin, slice);
        slice += layout.SliceBytes(id.tokens);
      }
      saved.push_back(std::move(object));
    }
    return saved;
  }
  static void Restore(const Saved& saved, int length, InvariantKv* kv) {
    kv->BeginRestore(length);
    for (const SavedObject& object : saved) {
      std::vector<const std::byte*> slices;
      for (size_t i = 0; i < kv->layout().LayerCount(object.id.group); ++i) {
        slices.push_back(object.bytes.get() + i * kv->layout().SliceBytes(object.id.tokens));
      }
      ASSERT_TRUE(kv->CopyIn(object.id, slices, false, object.bytes).ok());
    }
    kv->FinishRestore();
  }
  static void ExpectSameBytes(const Saved& ours, const Saved& theirs) {
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      for (RowCopies* copies : {ours[i].copies.get(), theirs[i].copies.get()}) {
        ASSERT_TRUE(copies == nullptr || copies->Wait());
      }
      EXPECT_EQ(std::memcmp(ours[i].bytes.get(), theirs[i].bytes.get(), ours[i].size), 0) << i;
    }
  }

  const std::shared_ptr<WatchedDevice> device_ = std::make_shared<WatchedDevice>();
  std::unique_ptr<InvariantGemma> cpu_, gemma_;
};

// The suffix is a graph step or a step of many rows.
TEST_F(TransfersTest, RestoredEqualsColdBothWays) {
  const std::vector<int32_t> text = Text(200);
  for (const int boundary : {32, 90, 96}) {
    InvariantKv on_cpu = cpu_->NewKv(), on_device = gemma_->NewKv();
    Step(*cpu_, text, boundary, &on_cpu);
    Step(*gemma_, text, boundary, &on_device);
    const Saved from_cpu = Save(on_cpu), from_device = Save(on_device);
    ExpectSameBytes(from_cpu, from_device);
    for (const int rows : {5, 60}) {
      InvariantKv cold = cpu_->NewKv(), there = gemma_->NewKv(), back = cpu_->NewKv();
      Step(*cpu_, text, boundary, &cold);
      Restore(from_cpu, boundary, &there);
      Restore(from_device, boundary, &back);
      for (const int end : {boundary + rows, boundary + rows + 1}) {
        const std::vector<float> expected = Step(*cpu_, text, end, &cold);
        EXPECT_EQ(Step(*gemma_, text, end, &there), expected) << boundary << " + " << rows;
        EXPECT_EQ(Step(*cpu_, text, end, &back), expected) << boundary << " + " << rows;
      }
    }
  }
  EXPECT_EQ(device_->error(), "");
  const auto counts = device_->counts();
  EXPECT_EQ(counts.copies[static_cast<int>(CopyWay::kIn)], 0);
  EXPECT_EQ(counts.copies[static_cast<int>(CopyWay::kOut)], 0);
}

TEST_F(TransfersTest, ManyRowsWaitForEachLayer) {
  const std::vector<int32_t> text = Text(150);
  InvariantKv on_cpu = cpu_->NewKv(), kv = gemma_->NewKv();
  Step(*cpu_, text, 64, &on_cpu);
  const Saved saved = Save(on_cpu);
  const int before = device_->counts().performed;
  Restore(saved, 64, &kv);
  device_->seen.clear();
  Step(*gemma_, text, 150, &kv);
  // Four chunks of the global layer; the local layers have two.
  EXPECT_EQ(device_->seen,
            (std::vector<int>{before, before + 2, before + 2 + 4, before + 2 + 4 + 2}));
}

// A step of another sequence does not wait for the restore.
TEST_F(TransfersTest, OtherSequencesDoNotWait) {
  const std::vector<int32_t> text = Text(100);
  InvariantKv on_cpu = cpu_->NewKv(), kv = gemma_->NewKv(), other = gemma_->NewKv();
  Step(*cpu_, text, 64, &on_cpu);
  const int before = device_->counts().performed;
  Restore(Save(on_cpu), 64, &kv);
  for (const int end : {40, 41}) Step(*gemma_, text, end, &other);
  EXPECT_EQ(device_->counts().performed, before);
  EXPECT_EQ(Step(*gemma_, text, 70, &kv), Step(*cpu_, text, 70, &on_cpu));
}

// Before the restored sequence has computed a step, a fork, a copy and another sequence read it.
TEST_F(TransfersTest, ReadersBeforeFirstStepWait) {
  const std::vector<int32_t> text = Text(60);
  InvariantKv on_cpu = cpu_->NewKv(), kv = gemma_->NewKv();
  Step(*cpu_, text, 16, &on_cpu);
  const Saved saved = Save(on_cpu);
  const std::vector<float> logits = Step(*cpu_, text, 60, &on_cpu);
  Restore(saved, 16, &kv);  // to new blocks: NaN
  InvariantKv adopts = gemma_->NewKv();
  adopts.BeginRestore(16);
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    ASSERT_TRUE(adopts.Adopt({0, 16, group}, kv.Share({0, 16, group})).ok());
  }
  adopts.FinishRestore();
  const auto before = device_->counts();
  EXPECT_EQ(Step(*gemma_, text, 60, &adopts), logits);
  const auto after = device_->counts();  // a block of the device is adopted without a copy
  EXPECT_TRUE(std::equal(before.transfers, before.transfers + 3, after.transfers));
  EXPECT_TRUE(std::equal(before.copies, before.copies + 3, after.copies));
  Restore(saved, 16, &kv);
  InvariantKv fork = gemma_->NewKv();
  fork.ShareAll(kv);
  EXPECT_EQ(Step(*gemma_, text, 60, &fork), logits);
  Restore(saved, 16, &kv);
  const size_t bytes = kv.layout().SliceBytes(kChunk);
  const Bytes slice = Filled(bytes, 0);
  kv.CopyOut(1, 0, kChunk, 0, kChunk, slice.get());
  EXPECT_EQ(std::memcmp(slice.get(), saved[0].bytes.get(), bytes), 0);
}

TEST_F(TransfersTest, CancelledRestoreReleasesMemory) {
  const std::vector<int32_t> text = Text(100);
  InvariantKv on_cpu = cpu_->NewKv(), kv = gemma_->NewKv();
  Step(*cpu_, text, 64, &on_cpu);
  {
    InvariantKv cancelled = gemma_->NewKv(), again = gemma_->NewKv();
    Restore(Save(on_cpu), 64, &cancelled);
    Restore(Save(on_cpu), 64, &again);
    again.BeginRestore(0);
  }
  EXPECT_EQ(gemma_->kv_blocks().used_bytes(), 0u);
  Step(*gemma_, text, 64, &kv);
  EXPECT_EQ(Step(*gemma_, text, 100, &kv), Step(*cpu_, text, 100, &on_cpu));
  EXPECT_EQ(device_->error(), "");
}

TEST_F(TransfersTest, FailedTransferFailsStep) {
  const std::vector<int32_t> text = Text(120);
  InvariantKv on_cpu = cpu_->NewKv(), other = gemma_->NewKv(), kv = gemma_->NewKv();
  Step(*cpu_, text, 64, &on_cpu);
  Step(*gemma_, text, 40, &other);
  Restore(Save(on_cpu), 64, &kv);
  device_->FailTransferAfter(3);
  std::vector<float> logits;
  const absl::Status step = gemma_->Step(&kv, absl::MakeSpan(text).subspan(64), 1, &logits);
  EXPECT_EQ(step.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(step.message(), "device: a transfer: an injected failure");
  EXPECT_EQ(kv.length(), 64);
  const Saved saved = Save(other);
  EXPECT_FALSE(saved[0].copies->Wait());
}

}  // namespace
}  // namespace hearth
