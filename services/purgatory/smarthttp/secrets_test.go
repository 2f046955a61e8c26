package smarthttp_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/services/purgatory/repository/gittest"
	"tendril.dev/services/purgatory/smarthttp"
)

func newSecret(t testing.TB) string {
	t.Helper()
	key, err := nip19.EncodePrivateKey(nostr.GeneratePrivateKey())
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// prose is text of many lines, of which git makes deltas.
func prose(last string) string {
	var b strings.Builder
	for i := range 300 {
		fmt.Fprintf(&b, "line %d of a file that changes a little with every commit\n", i)
	}
	return b.String() + last
}

func TestPushOfSecrets(t *testing.T) {
	t.Parallel()
	secret := newSecret(t)
	const rule = ": nostr-secret-key"
	for name, test := range map[string]struct {
		write func(w *gittest.Work, push func()) // push pushes what was written until then
		place string                             // "": there is nothing to tell
	}{
		"a new file": {func(w *gittest.Work, _ func()) { w.Commit("config/app.env", "A=1\nB=2\nKEY="+secret+"\n") }, "config/app.env:3" + rule},
		"an older commit": {func(w *gittest.Work, _ func()) {
			w.Commit("key ö.txt", secret)
			w.Commit("key ö.txt", "it is gone")
		}, "key ö.txt:1" + rule},
		"a change, in a thin pack": {func(w *gittest.Work, push func()) {
			w.Commit("a.txt", prose(""))
			push()
			w.Commit("a.txt", prose("key = "+secret+"\n"))
		}, "a.txt:301" + rule},
		"a placeholder that is replaced": {func(w *gittest.Work, push func()) {
			w.Commit("a.txt", prose("key = nsec1\n"))
			push()
			w.Commit("a.txt", prose("key = "+secret+"\n"))
		}, "a.txt:301" + rule},
		"versions in one pack": {func(w *gittest.Work, _ func()) {
			w.Commit("a.txt", prose("this is the longest version of all of them, and the others stand on it: key = nsec1… must be filled in by whoever runs it"))
			w.Commit("a.txt", prose("key = "+secret+"\n"))
			w.Commit("a.txt", prose("key\n"))
		}, "a.txt:301" + rule},
		"it was there before": {func(w *gittest.Work, push func()) {
			w.Commit("testdata/a.txt", prose(secret))
			push()
			w.Git("mv", "testdata/a.txt", "b.txt")
			w.Commit("c.txt", "c")
		}, ""},
		"a fixture":  {func(w *gittest.Work, _ func()) { w.Commit("app/testdata/a.txt", secret) }, ""},
		"allowed":    {func(w *gittest.Work, _ func()) { w.Commit("a.go", "key := `"+secret+"` // gitleaks:allow\n") }, ""},
		"no secret":  {func(w *gittest.Work, _ func()) { w.Commit("a.txt", prose("nsec1")) }, ""},
		"a checksum": {func(w *gittest.Work, _ func()) { w.Commit("a.txt", secret[:62]+"!") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			modes := []smarthttp.Secrets{smarthttp.SecretsRefuse, smarthttp.SecretsWarn, smarthttp.SecretsOff}
			switch {
			case test.place == "":
				modes = modes[:1]
			case name != "a new file":
				modes = modes[:2]
			}
			for _, mode := range modes {
				h := serve(t, smarthttp.Options{Secrets: mode})
				r := h.repo("secrets")
				w := gittest.NewWork(t)
				before := ""
				test.write(w, func() {
					w.Git("push", h.at("secrets"), "main")
					before = w.Git("rev-parse", "main")
				})
				out, err := gittest.Try(t, w.Dir, "push", h.at("secrets"), "main")
				refused := mode == smarthttp.SecretsRefuse && test.place != ""
				warned := mode == smarthttp.SecretsWarn && test.place != ""
				if refused != (err != nil) || refused != strings.Contains(out, "[remote rejected] main -> main (the push would publish a secret: "+test.place) {
					t.Errorf("%s: %v\n%s", mode, err, out)
				}
				if (refused || warned) != strings.Contains(out, "remote:   "+test.place+" ") || warned != strings.Contains(out, "remote: warning: ") {
					t.Errorf("%s: the place is not on the terminal, or should not be:\n%s", mode, out)
				}
				if strings.Contains(out, secret) {
					t.Errorf("%s: the secret itself is on the terminal:\n%s", mode, out)
				}
				want := w.Git("rev-parse", "main")
				if refused {
					want = before
				}
				if got := h.refs(r)["refs/heads/main"]; got != want {
					t.Errorf("%s: the reference is at %q, want %q", mode, got, want)
				}
				if data, err := r.HasOwnObjects(); err != nil || data != (want != "") {
					t.Errorf("%s: objects %v, %v", mode, data, err)
				}
				if left, err := r.HasLeftPushes(); err != nil || left {
					t.Errorf("%s: something is left in quarantine: %v, %v", mode, left, err)
				}
				for result, told := range map[string]bool{"refused": refused, "warned": warned, "unknown": false} {
					if (h.counted("ngit_git_push_secrets_total", result) == 1) != told {
						t.Errorf("%s: %s is counted wrongly", mode, result)
					}
				}
				gittest.Fsck(t, r.Path())
			}
		})
	}
}

// TestPlacesOfSecrets: the user is told where each of them is.
func TestPlacesOfSecrets(t *testing.T) {
	t.Parallel()
	key := newSecret(t)
	const rule = ": nostr-secret-key (commit "
	for name, test := range map[string]struct {
		write func(w *gittest.Work, push func()) // push pushes what was written until then
		place string
	}{
		"a merge": {func(w *gittest.Work, push func()) {
			w.Commit("a.txt", "a")
			push()
			w.Git("checkout", "--quiet", "-b", "side")
			w.Commit("b.txt", "b")
			w.Git("checkout", "--quiet", "main")
			w.Commit("c.txt", "c")
			w.Git("merge", "--quiet", "--no-commit", "side")
			w.Commit("d.txt", key)
			w.Git("branch", "--quiet", "--delete", "side")
		}, "d.txt:1" + rule},
		"a side that is merged": {func(w *gittest.Work, push func()) {
			w.Commit("a.txt", "a")
			push()
			w.Git("checkout", "--quiet", "-b", "side")
			w.Commit("b.txt", key)
			w.Commit("b.txt", "b")
			w.Git("checkout", "--quiet", "main")
			w.Git("merge", "--quiet", "--no-ff", "--message", "merged", "side")
		}, "b.txt:1" + rule},
		"a fixture that is a file too": {func(w *gittest.Work, _ func()) {
			w.Commit("a/tests/key", key)
			w.Commit("b/key", key)
		}, "b/key:1" + rule},
		"a large file": {func(w *gittest.Work, _ func()) {
			w.Commit("a.sql", strings.Repeat("insert into a values (1, 2, 3);\n", 100_000)+key)
		}, "a.sql:100001" + rule},
		"UTF-16": {func(w *gittest.Work, _ func()) {
			w.Commit("a.txt", "\xff\xfe\n\x00"+strings.Join(strings.Split(key, ""), "\x00")+"\x00")
		}, "a.txt:2" + rule},
		"a link": {func(w *gittest.Work, _ func()) {
			if err := os.Symlink(key, filepath.Join(w.Dir, "link")); err != nil {
				t.Error(err)
			}
			w.Git("add", "link")
			w.Git("commit", "--quiet", "--message", "a link")
		}, "link:1" + rule},
		"a name of two lines": {func(w *gittest.Work, _ func()) { w.Commit("a\nb", key) }, "a?b:1" + rule},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := serve(t, smarthttp.Options{Secrets: smarthttp.SecretsRefuse})
			h.repo("places")
			w := gittest.NewWork(t)
			test.write(w, func() { w.Git("push", h.at("places"), "main") })
			out, err := gittest.Try(t, w.Dir, "push", h.at("places"), "main")
			if err == nil || !strings.Contains(out, "remote:   "+test.place) || strings.Contains(out, key) {
				t.Errorf("want %q: %v\n%s", test.place, err, out)
			}
		})
	}
}

// TestSecretsInMessagesAndNames: those of commits and of tags, and in names of files, which are not
// shown.
func TestSecretsInMessagesAndNames(t *testing.T) {
	t.Parallel()
	h := serve(t, smarthttp.Options{Secrets: smarthttp.SecretsRefuse})
	h.repo("messages")
	w := gittest.NewWork(t)
	key := newSecret(t)
	w.Commit("a"+key, key)
	w.Git("commit", "--quiet", "--amend", "--message", "a key\n\nit is "+key)
	w.Git("tag", "--annotate", "--message", key, "v1")
	out, err := gittest.Try(t, w.Dir, "push", h.at("messages"), "main", "v1")
	for _, want := range []string{
		"remote:   a file with a secret in its name:1: nostr-secret-key",
		"remote:   commit " + w.Git("rev-parse", "main")[:12] + ", line 3 of its message: nostr-secret-key",
		"remote:   tag " + w.Git("rev-parse", "v1")[:12] + ", line 1 of its message: nostr-secret-key",
		"would publish 3 secrets",
	} {
		if err == nil || !strings.Contains(out, want) || strings.Contains(out, key) {
			t.Errorf("want %q: %v\n%s", want, err, out)
		}
	}
}

// TestPushThatCannotAllBeLookedAt is taken, and its user is told.
func TestPushThatCannotAllBeLookedAt(t *testing.T) {
	t.Parallel()
	h := serve(t, smarthttp.Options{Secrets: smarthttp.SecretsRefuse})
	h.repo("large")
	w := gittest.NewWork(t)
	key := newSecret(t)
	w.Commit("large", "-----BEGIN PRIVATE KEY-----\n"+strings.Repeat(strings.Repeat(" ", 1<<10)+"\n", 33<<10)+key)
	out, err := gittest.Try(t, w.Dir, "push", h.at("large"), "main")
	want := "remote: warning: not all of this push was looked at for secrets: too many bytes look suspicious, more than 32 MiB of one file"
	if err != nil || !strings.Contains(out, want) {
		t.Errorf("%v\n%s", err, out)
	}
	if h.counted("ngit_git_push_secrets_total", "unknown") != 1 {
		t.Error("it is not counted")
	}
}

// TestPushOfManySecrets: the first are told, and how many there are.
func TestPushOfManySecrets(t *testing.T) {
	t.Parallel()
	h := serve(t, smarthttp.Options{Secrets: smarthttp.SecretsRefuse})
	h.repo("many")
	w := gittest.NewWork(t)
	for i := range 4 {
		w.Commit(fmt.Sprintf("%d.txt", i), strings.Repeat(newSecret(t)+"\n", 3))
	}
	out, err := gittest.Try(t, w.Dir, "push", h.at("many"), "main")
	for _, want := range []string{"(the push would publish 12 secrets, such as 0.txt:1: ", "remote:   3.txt:1: ", "remote:   and 2 more"} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%q is not on the terminal: %v\n%s", want, err, out)
		}
	}
}

// TestPathsOfSecretsCannotWriteToTheTerminal: a path may have any byte.
func TestPathsOfSecretsCannotWriteToTheTerminal(t *testing.T) {
	t.Parallel()
	h := serve(t, smarthttp.Options{Secrets: smarthttp.SecretsWarn})
	h.repo("paths")
	w := gittest.NewWork(t)
	w.Commit("a\x1b[31m\u202eb", newSecret(t))
	out, err := gittest.Try(t, w.Dir, "push", h.at("paths"), "main")
	if err != nil || !strings.Contains(out, "remote:   a?[31m?b:1: nostr-secret-key") {
		t.Errorf("%v\n%q", err, out)
	}
}

// TestBrokenPushOfSecrets: git says what is wrong with it, as it does where nobody looks for
// secrets.
func TestBrokenPushOfSecrets(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	w.Commit("a", newSecret(t))
	commit := w.Git("rev-parse", "main")
	fixture := gittest.NewWork(t)
	harmless := fixture.Commit("testdata/a", newSecret(t))
	blob := w.Git("rev-parse", "main:a")
	damaged := w.Pack("main")
	damaged[len(damaged)-1] ^= 1
	for name, pack := range map[string][]byte{
		"without its tree": w.PackOf(commit, blob),
		"without a commit": w.PackOf(blob),
		"stale":            fixture.Pack("main"),
		"damaged":          damaged,
	} {
		answers, own := map[smarthttp.Secrets]string{}, map[smarthttp.Secrets]bool{}
		for _, mode := range []smarthttp.Secrets{smarthttp.SecretsOff, smarthttp.SecretsRefuse, smarthttp.SecretsWarn} {
			h := serve(t, smarthttp.Options{Secrets: mode})
			r := h.repo("broken")
			old, tip := smarthttp.ZeroID, commit
			if name == "stale" {
				old, tip = commit, harmless
			}
			line := old + " " + tip + " refs/heads/main\x00 report-status"
			body := fmt.Sprintf("%04x%s0000%s", len(line)+4, line, pack)
			answers[mode] = h.post("broken", body)
			if len(h.refs(r)) != 0 || !strings.Contains(answers[mode], "ng refs/heads/main") {
				t.Errorf("%s, %s: %v\n%q", name, mode, h.refs(r), answers[mode])
			}
			if left, err := r.HasLeftPushes(); err != nil || left {
				t.Errorf("%s, %s: something is left in quarantine: %v, %v", name, mode, left, err)
			}
			var err error
			if own[mode], err = r.HasOwnObjects(); err != nil || own[mode] != own[smarthttp.SecretsOff] {
				t.Errorf("%s, %s: objects are left that nothing refers to: %v, %v", name, mode, own, err)
			}
			if answers[mode] != answers[smarthttp.SecretsOff] {
				t.Errorf("%s, %s: the answer is %q, want %q", name, mode, answers[mode], answers[smarthttp.SecretsOff])
			}
		}
	}
}

// post pushes by hand and gives the answer.
func (h *house) post(identifier, body string) string {
	h.Helper()
	response, err := http.Post(h.at(identifier)+"/git-receive-pack", receiveType, strings.NewReader(body))
	if err != nil {
		h.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		h.Fatal(err)
	}
	return string(answer)
}

// BenchmarkPushWithALookForSecrets pushes the source of Go's standard library and tools, once as
// one commit and once as 40, in each of which every tenth file has changed a little. Its tests have
// many private keys, so that some files are looked at closely.
func BenchmarkPushWithALookForSecrets(b *testing.B) {
	w := gittest.NewWork(b)
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		b.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src")
	w.Git("--work-tree="+source, "add", "--all", "--force")
	w.Git("commit", "--quiet", "--message", "the source of Go")
	bodies := map[string]string{"one commit": pushBody(w)}
	w.Git("reset", "--quiet", "--hard")
	files := strings.Split(w.Git("ls-files", "*.go", "*.s", "*.md"), "\n")
	for i := range 40 {
		for n := i % 10; n < len(files); n += 10 {
			f, err := os.OpenFile(filepath.Join(w.Dir, files[n]), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				b.Fatal(err)
			}
			fmt.Fprintf(f, "// change %d of file %d: nsec1 keys are written in Bech32\n", i, n)
			f.Close()
		}
		w.Git("commit", "--quiet", "--all", "--message", "change")
	}
	bodies["40 commits"] = pushBody(w)
	for name, body := range bodies {
		for _, mode := range []smarthttp.Secrets{smarthttp.SecretsOff, smarthttp.SecretsWarn} {
			b.Run(fmt.Sprintf("%s of %d MB/%s", name, len(body)>>20, mode), func(b *testing.B) {
				h := serve(b, smarthttp.Options{Secrets: mode})
				b.SetBytes(int64(len(body)))
				n := 0
				for b.Loop() {
					n++
					h.repo(fmt.Sprint(n))
					if answer := h.post(fmt.Sprint(n), body); !strings.Contains(answer, "ok refs/heads/main") {
						b.Fatalf("%q", answer)
					}
				}
			})
		}
	}
}

// pushBody is the request that pushes the work tree's branch to an empty repository.
func pushBody(w *gittest.Work) string {
	w.Helper()
	line := smarthttp.ZeroID + " " + w.Git("rev-parse", "main") + " refs/heads/main\x00 report-status"
	return fmt.Sprintf("%04x%s0000%s", len(line)+4, line, w.Pack("main"))
}
