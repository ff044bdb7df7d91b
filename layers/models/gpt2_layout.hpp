// GPT-2's layout: configuration, names and shapes as in Hugging Face's GPT2LMHeadModel, both ways.
#pragma once

#include <filesystem>
#include <string>

#include <regard/autograd/state_dict.hpp>
#include <regard/layers/models/gpt.hpp>

namespace regard::layers {

/// The options that the text of a config.json describes. Read are vocab_size, n_positions, n_embd, n_head, n_layer
/// (all required), n_inner, layer_norm_epsilon, activation_function, tie_word_embeddings and resid_pdrop (Regard has
/// one dropout for embeddings, attention and branches). A FileError names `file` and the key that is missing, of a
/// wrong type, or asks for what GPT does not do (scaling by layer, cross-attention, another model_type).
GPTOptions gpt2_options(const std::string& config, const std::string& file = "config.json");

/// The text of the config.json of a model with these options, which transformers reads. A ValueError for what GPT-2's
/// layout has no place for: rotary or ALiBi positions, grouped-query attention, layers without biases.
std::string gpt2_config(const GPTOptions& options);

/// The model's weights under GPT-2's names: transformer.wte.weight, transformer.h.0.attn.c_attn.weight and so on, the
/// packed and transposed matrices of its Conv1D in memory of their own. A tied head is not listed (transformers ties
/// it again), an untied one is lm_head.weight. The same ValueErrors as gpt2_config(), and one for a model with adapters
/// (see merge_lora() in lora.hpp).
StateDict to_gpt2(const GPT& model);

/// Loads weights under GPT-2's names into a model made with the same configuration, casting between floating dtypes.
/// Names may begin with `transformer.` or not; the buffers attn.bias and attn.masked_bias are passed over, and a tied
/// head's lm_head.weight may be there if it equals wte.weight. A ValueError lists what is missing, unexpected and of
/// another shape, and nothing is loaded then; `source` names the weights in it.
void from_gpt2(GPT& model, const StateDict& weights, const std::string& source = "the state dict");

/// The model in a folder with config.json and model.safetensors, or the files that model.safetensors.index.json lists;
/// in evaluation mode. A FileError names the file, and the key and both shapes where weights do not fit the
/// configuration.
GPT load_gpt2(const std::filesystem::path& folder);

/// Writes config.json and model.safetensors into `folder`, which is made where it is missing:
/// `GPT2LMHeadModel.from_pretrained(folder)` reads them. Each file is written whole or not at all.
void save_gpt2(const std::filesystem::path& folder, const GPT& model);

}  // namespace regard::layers
