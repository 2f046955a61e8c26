package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
)

// credentialCommand proves to a private service that the user is a member (GRASP-08, NIP-98). git
// asks it for a user name and a password, which is the proof:
//
//	git config --global credential.https://git.example.com.helper '!tendril credential'
//	git config --global credential.https://git.example.com.useHttpPath true
//
// docs/private.md says more.
type credentialCommand struct {
	Get    credentialGet    `cmd:"" help:"Answer git, as a credential helper does."`
	Store  credentialIgnore `cmd:"" hidden:""`
	Erase  credentialIgnore `cmd:"" hidden:""`
	Header credentialHeader `cmd:"" help:"Print the header for an address, which is good for a minute: git -c http.extraHeader=\"$(tendril credential header URL)\" clone URL."`
}

// credentialIgnore is what git tells a helper that keeps nothing.
type credentialIgnore struct{}

// Run implements the command.
func (credentialIgnore) Run() error { return nil }

type credentialGet struct{}

// Run implements the command.
func (credentialGet) Run() error { return answerGit(os.Stdin, os.Stdout) }

// answerGit reads a request of git (git-credential) and answers it. What is not for a server over
// HTTP is left to other helpers.
func answerGit(from io.Reader, to io.Writer) error {
	asked := map[string]string{}
	for lines := bufio.NewScanner(from); lines.Scan() && lines.Text() != ""; {
		name, value, _ := strings.Cut(lines.Text(), "=")
		asked[name] = value
	}
	if asked["protocol"] != "https" && asked["protocol"] != "http" {
		return nil
	}
	if asked["path"] == "" {
		return fmt.Errorf("git does not say for which repository: git config --global credential.%s://%s.useHttpPath true",
			asked["protocol"], asked["host"])
	}
	// git has decoded the path. The address is signed as its request writes it.
	segments := strings.Split(asked["path"], "/")
	for i, segment := range segments {
		segments[i] = nostr.EncodeIdentifier(segment)
	}
	proof, err := prove(asked["protocol"] + "://" + asked["host"] + "/" + strings.Join(segments, "/"))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(to, "username=nostr\npassword=%s\n", proof)
	return err
}

type credentialHeader struct {
	URL string `arg:"" help:"Address of the repository, or of anything else of the service."`
}

// Run implements the command.
func (c *credentialHeader) Run() error {
	proof, err := prove(c.URL)
	if err == nil {
		fmt.Println("Authorization: Nostr " + proof)
	}
	return err
}

// prove signs a proof for an address, and encodes it.
func prove(address string) (string, error) {
	key, err := userKey()
	if err != nil {
		return "", err
	}
	return nostr.NewProof(address, key.Sign)
}

// keyFileVariable names a file with the user's secret key. Without it the key is where ngit keeps it,
// in git's own settings.
const (
	keyFileVariable = "TENDRIL_KEY_FILE"
	keySetting      = "nostr.nsec"
)

// userKey is the secret key of the user. It is in a file or in git's settings, never on a command
// line, which every user of the machine can read.
func userKey() (config.Key, error) {
	if path := os.Getenv(keyFileVariable); path != "" {
		info, err := os.Stat(path)
		if err != nil {
			return config.Key{}, fmt.Errorf("%s: %w", keyFileVariable, err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			return config.Key{}, fmt.Errorf("%s can be read by others: chmod 600 %s", path, path)
		}
		return config.ReadKeyFile(path)
	}
	text, err := exec.CommandContext(context.Background(), "git", "config", "--get", keySetting).Output()
	if err != nil {
		return config.Key{}, fmt.Errorf("there is no key: want a file with nsec1… in %s, or `ngit account login`, "+
			"which keeps one in git's setting %s: %w", keyFileVariable, keySetting, fs.ErrNotExist)
	}
	key, err := config.ReadKey(strings.TrimSpace(string(text)))
	if err != nil {
		return key, errors.New("git's setting " + keySetting + " " + err.Error())
	}
	return key, nil
}
