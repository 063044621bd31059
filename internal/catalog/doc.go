// Package catalog is what memplan knows by name: graphics cards, language models
// and versions of libraries, as tables embedded in the binary. It looks nothing
// up elsewhere and keeps no state: Open decodes the tables once, and the value
// it returns is read-only.
//
// # Cards (data/gpus.json, data/architectures.yaml)
//
// A row carries, beside its figures, the words that say how sure they are
// (verified, seen, seen-card-inferred, recalled, datasheet-recalled). Usable is
// what the framework can get of the card: the smallest total that cudaMemGetInfo
// was seen to report in public logs (it is printed to 0.01 GiB, so it may be 5 MiB
// off); failing that, nvidia-smi's total less the most the driver was seen to hide
// on cards of the architecture; failing that, the nominal size in decimal
// gigabytes. UsableSource says which. Drivers differ by some hundred MiB, which
// is why the smallest report counts.
//
// A MIG profile gives its size of the table, scaled down where the table's sum
// promises more than the whole card gives.
//
// The context prior is a range of public reports per architecture, its middle
// and a spread that is wider than the range; nothing in it was measured on the
// card. AMD's is wider still, and AMD cards carry a warning. Cards of other
// vendors are not in the table: they are asked for by memory_gib.
//
// # Models (data/models.json)
//
// Every entry says which public file its config was read in; no config is from
// memory. A key that file lacks (the stored type, most often) is taken from a
// second one or from the model of the same release whose config was read, and
// source says so. Only keys that decide shapes, types or attention are kept.
//
// Parameters is counted from the config (and equals what transformers builds
// from it, see testdata/parameters.json); ParametersPublished is a figure
// somebody else printed, where one was found, and the tests hold the two equal.
// A bare count of parameters becomes an architecture by OfSize, or by Scaled.
//
// # Versions (data/versions.yaml)
//
// The sets of libraries the engine's rules were checked against. Any other
// version is answered by the nearest known one, and the caller says so.
package catalog
