// Package jobfile reads the files other tools keep a training job in, and
// writes a job as such a file: Hugging Face arguments, accelerate and DeepSpeed
// configurations, axolotl, LLaMA-Factory, torchtune, Lightning, Megatron-LM,
// torchtitan, allocator settings, and the requests of schedulers.
//
// One file of this package is one format: a list of rules, each of which ties
// keys of the tool's file to settings of a job, in both directions. What a
// format has no word for is found by reading back what was written, so it is
// never lost in silence; and a key nobody knows is listed, never an error.
package jobfile
