package wire

// Alias is a short key of the URL.
type Alias struct {
	Key  string // as it stands in the URL
	Path string // the key of the format
	Help string
}

// Aliases lists the short keys of URLs.
func Aliases() []Alias { return nil }
