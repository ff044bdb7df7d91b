// Regard: everything a program needs, in one header.
#pragma once

#include <regard/autograd/gradcheck.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/random.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/autograd/tensor.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/autograd/version.hpp>
#include <regard/layers/activation.hpp>
#include <regard/layers/attention.hpp>
#include <regard/layers/dropout.hpp>
#include <regard/layers/embedding.hpp>
#include <regard/layers/feed_forward.hpp>
#include <regard/layers/gradcheck.hpp>
#include <regard/layers/init.hpp>
#include <regard/layers/layer.hpp>
#include <regard/layers/linear.hpp>
#include <regard/layers/norm.hpp>
#include <regard/layers/positions.hpp>
#include <regard/layers/sequential.hpp>
#include <regard/layers/transformer.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/clip.hpp>
#include <regard/optim/schedule.hpp>
#include <regard/optim/sgd.hpp>
