#include "tests/services/hearthctl/run_cli.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "services/hearthctl/cli.h"

namespace hearth {
namespace {

Json Read(const nlohmann::ordered_json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned()) return json.get<uint64_t>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  Json read = json.is_object() ? Json::Object() : json.is_array() ? Json::Array() : Json();
  for (const auto& [name, value] : json.items()) {
    if (json.is_object()) read[name] = Read(value);
    if (json.is_array()) read.Append(Read(value));
  }
  return read;
}

}  // namespace

CliResult RunCli(const std::vector<std::string>& arguments, const std::string& input) {
  std::vector<const char*> argv = {"hearthctl"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::istringstream in(input);
  std::ostringstream out, err;
  Console console{in, out, err};
  CliResult result;
  result.code = RunHearthctl(static_cast<int>(argv.size()), argv.data(), console);
  result.out = out.str();
  result.err = err.str();
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) result.objects.push_back(Read(json));
  }
  return result;
}

}  // namespace hearth
