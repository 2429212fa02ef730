// Which chat templates count as Gemma's. template_oracle.py compares the results with transformers.
#include "worker/text/template_form.h"

#include <string>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/worker/text/tiny_tokenizer.h"

namespace hearth {
namespace {

std::string GemmaTemplate() { return ReadTestFile("gemma_chat.jinja"); }

std::string With(const std::string& from, const std::string& to) {
  const std::string changed = absl::StrReplaceAll(GemmaTemplate(), {{from, to}});
  EXPECT_NE(changed, GemmaTemplate()) << from;
  return changed;
}

// Returns `text` after replacements (from, to). Each `from` must occur.
std::string Changed(std::string text, const nlohmann::json& changes) {
  for (const nlohmann::json& change : changes) {
    const std::string before = text;
    absl::StrReplaceAll({{change[0].get<std::string>(), change[1].get<std::string>()}}, &text);
    EXPECT_NE(text, before) << change[0];
  }
  return text;
}

TEST(TemplateForm, PublishedFormsAreKnown) {
  nlohmann::json templates = nlohmann::json::parse(ReadTestFile("gemma_templates.json"));
  const std::string published = Changed(GemmaTemplate(), templates["published"]);
  EXPECT_TRUE(RendersAsGemma(published));
  templates.erase("published");
  EXPECT_EQ(templates.size(), 3U);
  for (const auto& [name, changes] : templates.items())
    EXPECT_TRUE(RendersAsGemma(Changed(published, changes))) << name;
}

TEST(TemplateForm, LiteralBosIsKnown) {
  EXPECT_TRUE(RendersAsGemma(With("{{ bos_token }}", "<bos>")));
  EXPECT_TRUE(RendersAsGemma(With("{{ bos_token }}", "{{ '<bos>' }}")));
  EXPECT_FALSE(RendersAsGemma(With("{{ bos_token }}", "<bos>{{ bos_token }}")));
  EXPECT_FALSE(RendersAsGemma(With("{{ bos_token }}", "<bos> {{ '' }}")));
  EXPECT_FALSE(RendersAsGemma(With("{{ bos_token }}", "<pad>")));
}

TEST(TemplateForm, LayoutChangesKeepTemplateKnown) {
  EXPECT_TRUE(RendersAsGemma(GemmaTemplate()));
  EXPECT_TRUE(RendersAsGemma(GemmaTemplate() + "\n\n"));
  EXPECT_TRUE(RendersAsGemma(With("\n", "\r\n")));
  EXPECT_TRUE(RendersAsGemma(With("    ", "\t")));
  EXPECT_TRUE(RendersAsGemma(With("message.role", "message['role']")));
  EXPECT_TRUE(RendersAsGemma(With("'user'", "\"user\"")));
  EXPECT_TRUE(RendersAsGemma(With(" == ", "==")));
  EXPECT_TRUE(RendersAsGemma(With("{{ '\\n' }}", "{{ '\n' }}")));
  EXPECT_TRUE(RendersAsGemma(With("<end_of_turn>{{ '\\n' }}", "{{ '<end_of_turn>\\n' }}")));
  EXPECT_TRUE(RendersAsGemma(With("{%- endfor -%}", "{#- loops -#}{%- endfor -%}{#- end -#}")));
}

TEST(TemplateForm, ChangedOutputMakesTemplateUnknown) {
  EXPECT_FALSE(RendersAsGemma(""));
  EXPECT_FALSE(RendersAsGemma("{{ bos_token }}"));
  EXPECT_FALSE(RendersAsGemma("\n" + GemmaTemplate()))
      << "the line end would be rendered before <bos>";
  EXPECT_FALSE(RendersAsGemma(With("{{ bos_token }}", " {{ bos_token }}")));
  EXPECT_FALSE(RendersAsGemma(With("{{ bos_token }}\n", "")));
  EXPECT_FALSE(RendersAsGemma(With("\\n\\n", "\\n")));
  EXPECT_FALSE(RendersAsGemma(With("message.content | trim", "message.content")));
  EXPECT_FALSE(RendersAsGemma(With("<start_of_turn>model", "<start_of_turn> model")));
  EXPECT_FALSE(RendersAsGemma(With("<end_of_turn>", "<eos>")));
  EXPECT_FALSE(RendersAsGemma(With("'user'", "'User'")));
  EXPECT_FALSE(RendersAsGemma(With("{%- endif -%}\n    <start", "{%- endif %}\n    <start")));
  EXPECT_FALSE(RendersAsGemma(With("{{ role }}", "{% raw %}{{ role }}{% endraw %}")));
  EXPECT_FALSE(RendersAsGemma(GemmaTemplate() + "{{ 'x"));
  EXPECT_FALSE(RendersAsGemma(GemmaTemplate() + "{% if"));
  EXPECT_FALSE(RendersAsGemma(GemmaTemplate() + "{#"));
}

// A ChatML template, a translation template, and a function calling template.
TEST(TemplateForm, TemplatesOfOtherModelsAreUnknown) {
  for (const char* name : {"chatml.jinja", "translate.jinja", "functions.jinja"})
    EXPECT_FALSE(RendersAsGemma(ReadTestFile(std::string("other_templates/") + name))) << name;
}

TEST(TemplateForm, WhitespaceIsStrippedLikeJinja) {
  const std::string form = TemplateForm("a{{ x }}b");
  EXPECT_EQ(TemplateForm("a {{- x -}}\n b"), form);
  EXPECT_NE(TemplateForm("a {{ x }}b"), form);
  EXPECT_NE(TemplateForm("a{{ x }}\nb"), form) << "a line end after an output tag is kept";
  const std::string block = TemplateForm("a\n{%- if x -%}b{%- endif -%}");
  EXPECT_EQ(TemplateForm("a{% if x %}b{% endif %}"), block);
  EXPECT_EQ(TemplateForm("a{% if x %}\nb{% endif %}\n"), block)
      << "one line end is removed after a statement";
  EXPECT_NE(TemplateForm("a{% if x %}\n\nb{% endif %}"), block);
  EXPECT_EQ(TemplateForm("a\n{% if x %}b{% endif %}"), TemplateForm("a\n  {% if x %}b{% endif %}"));
  EXPECT_NE(TemplateForm("a {% if x %}b{% endif %}"), block)
      << "the tag is not the first in its line";
  EXPECT_NE(TemplateForm("a\n {%+ if x %}b{% endif %}"), TemplateForm("a\n{% if x %}b{% endif %}"));
  EXPECT_NE(TemplateForm("a{% if x +%}\nb{% endif %}"), block);
  EXPECT_NE(TemplateForm("{{ 'a' }}{{ x }}"), TemplateForm("{{ a }}{{ x }}"));
  EXPECT_EQ(TemplateForm("{{ {'a': {}} }}"), TemplateForm("{{ {'a': {} }}}"));
}

}  // namespace
}  // namespace hearth
