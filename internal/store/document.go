package store

import (
	"bytes"
	"compress/gzip"
	"io"
)

// pack compresses a document: an answer is mostly its timeline, and shrinks to
// an eighth.
func (s *Store) pack(document []byte) ([]byte, error) {
	var b bytes.Buffer
	z, ok := s.packers.Get().(*gzip.Writer)
	if !ok {
		z, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails only on an unknown level
	}
	defer s.packers.Put(z)
	z.Reset(&b)
	if _, err := z.Write(document); err != nil {
		return nil, err
	}
	err := z.Close()
	return b.Bytes(), err
}

// unpack undoes pack.
func unpack(packed []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}
