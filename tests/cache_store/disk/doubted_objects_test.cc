// Objects written by a damaged log are doubted: some count as lost, others never were anybody's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cache_store/disk/stored_records.h"
#include "tests/support/raw_database.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::EndsWith;

class DoubtedObjects : public ::testing::Test {
 protected:
  std::unique_ptr<TieredStore> Open() {
    lines_.clear();
    StoreOptions options;
    options.data_dir = Dir();
    options.host_bytes = 0;
    options.disk_bytes = uint64_t{1} << 30;
    options.on_warning = [this](const std::string& line) { lines_.push_back(line); };
    ManualExecutor* executor = nullptr;
    return OpenStore(options, SteppedSeams(&executor)).value();
  }
  std::string Dir() const { return folder_.File("data"); }
  // The start puts it right, and doubts what that log wrote.
  void FlipABitOfEachLog() const {
    for (const auto& entry : fs::directory_iterator(Dir() + "/db")) {
      if (entry.path().extension() != ".log" || entry.file_size() == 0) continue;
      const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const char byte = static_cast<char>(file.seekg(middle).get());
      file.seekp(middle).put(static_cast<char>(byte ^ 4));
    }
  }

  const TestFolder folder_;
  std::vector<std::string> lines_;
};

// An object that no manifest names is what a publish left that did not come to its end: nothing was
// acknowledged of it.
TEST_F(DoubtedObjects, OfTheseOnlyWhatAManifestNamesIsLost) {
  const Fingerprint model = KitModel().Make();
  ASSERT_TRUE(KitPublish(Open().get(), model, {KitTokens(1, 65), {}}, {64}).ok());
  {
    RawDatabase database(Dir());
    const auto [key, value] = database.All("objects").at(0);
    ObjectRecord object = ParseObject(value).value();
    const uint64_t number = object.number;
    database.Put("objects", key, value);
    database.Delete("slices", SliceKey(number, object.layers[0]));
    for (object.number = 901; object.number <= 903; ++object.number) {
      database.Put("objects", NumberKey(object.number), SerializeObject(object));
    }
  }
  FlipABitOfEachLog();
  const auto store = Open();
  EXPECT_THAT(lines_, Contains(EndsWith("of 1 objects there are slices lost")));
  EXPECT_EQ(store->Stats().counters.at("recovery_lost_restore_points"), 1u);
}

}  // namespace
}  // namespace hearth
