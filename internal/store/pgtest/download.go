package pgtest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// defaultRepository is where artifacts are fetched from without Maven, unless
// $MEMPLAN_MAVEN_REPOSITORY names another.
const defaultRepository = "https://repo1.maven.org/maven2"

// download writes the artifact to a file: through Maven where it is installed,
// for its settings know the user's mirrors, and otherwise by plain HTTP.
func download(ctx context.Context, file string) error {
	repository := os.Getenv("MEMPLAN_MAVEN_REPOSITORY")
	if mvn, err := exec.LookPath("mvn"); err == nil && repository == "" {
		return downloadByMaven(ctx, mvn, file)
	}
	if repository == "" {
		repository = defaultRepository
	}
	path := strings.Join([]string{strings.ReplaceAll(group, ".", "/"), artifact, version, artifact + "-" + version + ".jar"}, "/")
	return downloadByHTTP(ctx, strings.TrimRight(repository, "/")+"/"+path, file)
}

func downloadByMaven(ctx context.Context, mvn, file string) error {
	dir := filepath.Dir(file)
	cmd := exec.CommandContext(ctx, mvn, "--batch-mode", "--quiet", "dependency:copy",
		"-Dartifact="+group+":"+artifact+":"+version+":jar", "-DoutputDirectory="+dir)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mvn: %w: %s", err, out)
	}
	return os.Rename(filepath.Join(dir, artifact+"-"+version+".jar"), file)
}

func downloadByHTTP(ctx context.Context, url, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, res.Body)
	if err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
