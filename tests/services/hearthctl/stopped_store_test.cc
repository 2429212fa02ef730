// Without a server: the folder of a store that does not run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/hearthctl/run_cli.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

TEST(StoppedStoreTest, NoFolderAndNoSecretAreMade) {
  const TestFolder folder;
  const std::string data = folder.File("data");
  const auto list = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"ls", "--data-dir", data});
    return RunCli(more);
  };
  EXPECT_THAT(list({}).err, HasSubstr("is not a store's data folder"));
  EXPECT_EQ(folder.Files(), 0u);
  const std::string secret = folder.Write("secret", std::string(64, 'a'));
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  StoreOptions options = StoreServer::SmallStore(data);
  options.secret_file = secret;
  std::make_unique<StoreServer>(options).reset();
  EXPECT_THAT(list({}).err, HasSubstr("--secret-file"));
  EXPECT_FALSE(std::filesystem::exists(data + "/secret"));
  EXPECT_EQ(list({"--secret-file", secret}).code, kExitOk);
}

}  // namespace
}  // namespace hearth
