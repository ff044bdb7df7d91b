#pragma once

#include <filesystem>
#include <regard/examples/common/digits_training.hpp>
#include <string>

namespace examples {

/// loss.svg: the loss on training batches and on the test's pictures, on a logarithmic axis.
void draw_picture_loss(const std::filesystem::path& path, const std::string& title, const PictureCourse& course);

/// confusion.svg: how often each class was read as which.
void draw_confusion(const std::filesystem::path& path, const LabelledPictures& pictures, const PictureTest& test);

/// attention.svg: for one picture of each class and for those that were read wrong, up to twelve pictures in all, where
/// each layer looks: the class token's attention to the patches (without one, what all patches give to each), mean of
/// the heads.
void draw_picture_attention(const std::filesystem::path& path, const regard::layers::VisionTransformer& model,
                            const LabelledPictures& pictures, const PictureTest& test);

}  // namespace examples
