package smarthttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/secrets"
)

const (
	// secretsBytes and secretsFileBytes bound how much is looked at of a push and of one file.
	secretsBytes     = 128 << 20
	secretsFileBytes = 32 << 20
	// maxHits is how many objects with secrets are looked for in a push.
	maxHits = 1000
	// maxMessage bounds how much is looked at of a commit or tag.
	maxMessage = 1 << 20
	// maxToldPath bounds a path on the user's terminal, in letters.
	maxToldPath = 200
	// shortID is how many digits of an id a user is told.
	shortID = 12
)

// Why not all of a push was looked at for secrets, in words for its user.
var (
	errSecretsTime  = fmt.Errorf("it would have taken longer than %v", secretsTime)
	errSecretsBytes = fmt.Errorf("too many bytes look suspicious, more than %d MiB of one file or %d MiB in all",
		secretsFileBytes>>20, secretsBytes>>20)
	errSecretsFiles = fmt.Errorf("more than %d files have what looks like secrets", maxHits)
)

// secretsLook is a close look at the objects of one push.
type secretsLook struct {
	finder secrets.Finder
	hits   map[string]hit // by id of the object
	read   int64
	places []string
}

// hit is an object that has secrets.
type hit struct {
	kind     string
	findings []secrets.Finding
	located  bool
}

// find finds the objects that have secrets, among those that begin at these places of the pack.
// What the repository had before is public already.
func (l *secretsLook) find(ctx context.Context, repo *repository.Repo, q *repository.Quarantine, offsets []int64) error {
	ids, err := q.IDs(offsets)
	if err != nil {
		return err
	}
	if ids, err = repo.Missing(ctx, ids); err != nil {
		return cause(ctx, err)
	}
	var left error
	err = q.Files(ctx, ids, func(f repository.File) bool {
		if f.Size > secretsFileBytes {
			left = errSecretsBytes
		}
		var findings []secrets.Finding
		if f.Kind == "blob" {
			findings, _ = l.finder.Find(io.LimitReader(f.Content, secretsFileBytes)) // git's error ends it
		} else {
			findings = inMessage(f.Content)
		}
		if len(findings) > 0 {
			l.hits[f.ID] = hit{kind: f.Kind, findings: findings}
		}
		if l.read += min(f.Size, secretsFileBytes); l.read > secretsBytes {
			left = errSecretsBytes
		} else if len(l.hits) > maxHits {
			left = errSecretsFiles
		}
		return l.read <= secretsBytes && len(l.hits) <= maxHits
	})
	return errors.Join(left, cause(ctx, err))
}

// inMessage finds the secrets in the message of a commit or tag.
func inMessage(object io.Reader) []secrets.Finding {
	content, _ := io.ReadAll(io.LimitReader(object, maxMessage)) // git's error ends it
	_, message, _ := bytes.Cut(content, []byte("\n\n"))
	return secrets.Find(message)
}

// locate finds out where the user knows the objects that have secrets, and whether the push makes
// them visible.
func (l *secretsLook) locate(ctx context.Context, q *repository.Quarantine, tips []string) error {
	open := len(l.hits)
	if open == 0 {
		return nil
	}
	tell := func(id, format string, args ...any) {
		h := l.hits[id]
		for _, f := range h.findings {
			l.places = append(l.places, fmt.Sprintf(format, append([]any{f.Line, f.Rule}, args...)...))
		}
		h.located = true
		l.hits[id] = h
		open--
	}
	for _, tip := range tips {
		if h := l.hits[tip]; h.kind == "tag" && !h.located {
			tell(tip, "tag %[3]s, line %[1]d of its message: %[2]s", tip[:shortID])
		}
	}
	err := q.Changes(ctx, tips, func(commit, path, file []byte) bool {
		id := file
		if path == nil {
			id = commit
		}
		h, is := l.hits[string(id)]
		switch {
		case !is || h.located:
		case path == nil:
			tell(string(id), "commit %[3]s, line %[1]d of its message: %[2]s", commit[:shortID])
		case secrets.Ordinary(string(path)):
			tell(string(id), "%[3]s:%[1]d: %[2]s (commit %[4]s)", printable(string(path)), commit[:shortID])
		}
		return open > 0
	})
	return cause(ctx, err)
}

// result is what was found, in the order of the places; nil if nothing.
func (l *secretsLook) result() *SecretsFound {
	if len(l.places) == 0 {
		return nil
	}
	slices.Sort(l.places)
	return &SecretsFound{slices.Compact(l.places)}
}

// missed says what was not looked at, in words for the user; "" if everything was. dropped is how
// many objects were not even remembered as the pack arrived.
func (l *secretsLook) missed(err error, dropped int) string {
	reasons := []string{}
	for _, known := range []error{errSecretsTime, errSecretsBytes, errSecretsFiles} {
		if errors.Is(err, known) {
			reasons = append(reasons, known.Error())
		}
	}
	if err != nil && len(reasons) == 0 {
		reasons = append(reasons, "the server could not read it")
	}
	if dropped > 0 {
		reasons = append(reasons, fmt.Sprintf("too many objects look suspicious, %d more than are looked at", dropped))
	}
	return strings.Join(reasons, "; ")
}

// cause adds to an error why its context ended, if it did.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return err
}

// printable makes a path fit for a terminal, and hides a secret in it.
func printable(path string) string {
	if len(secrets.Find([]byte(path))) > 0 {
		return "a file with a secret in its name"
	}
	letters := []rune(strings.ToValidUTF8(path, "?"))
	for i, c := range letters {
		if !unicode.IsPrint(c) {
			letters[i] = '?'
		}
	}
	if len(letters) > maxToldPath {
		return "…" + string(letters[len(letters)-maxToldPath:])
	}
	return string(letters)
}
