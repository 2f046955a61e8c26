package repository

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Git older than this cannot keep what nothing reaches in a pack of its own (gc --cruft, 2.37).
const leastMajor, leastMinor = 2, 37

// configuration rules every git command. It comes by the environment, so that the commands that git
// starts have it too.
var configuration = []string{
	"safe.directory=*", // the volume may belong to another user
	"core.hooksPath=/dev/null",
	"core.attributesFile=/dev/null",
	"core.logAllRefUpdates=false",
	"core.fsync=committed,loose-object", // durable before done
	"gc.auto=0",
	"protocol.allow=never",
	"pack.threads=2",
	"pack.windowMemory=32m",
	"pack.deltaCacheSize=32m",
	"core.deltaBaseCacheLimit=32m",
	"core.bigFileThreshold=32m", // larger ones are streamed, not kept in memory
}

// forgiven are faults that old versions of git wrote into many an honest history. Every other fault
// that git fsck knows refuses the pack, those that it only warns of too.
var forgiven = []string{"badtimezone", "missingspacebeforedate", "zeropaddedfilemode", "missingtaggerentry", "nullsha1"}

// forgive is that as configuration of a command.
func forgive(prefix string) (settings []string) {
	for _, fault := range forgiven {
		settings = append(settings, prefix+fault+"=ignore")
	}
	return settings
}

// receiveConfiguration makes receive-pack check a push as strictly as Take checks a pack.
var receiveConfiguration = append(forgive("receive.fsck."),
	"receive.fsckObjects=true",
	"receive.unpackLimit=1", // always a pack, never thousands of loose files
	"receive.autogc=false",
	"receive.denyCurrentBranch=ignore",
	"receive.denyDeleteCurrent=ignore",
)

// uploadConfiguration lets upload-pack serve what GRASP-01 asks for.
var uploadConfiguration = []string{
	"uploadpack.allowTipSHA1InWant=true",
	"uploadpack.allowReachableSHA1InWant=true",
	"uploadpack.allowFilter=true",
	"uploadpackfilter.sparse:oid.allow=false", // costs much, and no client uses it
	"lsrefs.unborn=advertise",
}

// checkGit runs git, and returns its version, and the branch that HEAD of a new repository follows.
func checkGit(git string) (version, branch string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ask := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, git, args...)
		cmd.Env = environment(nil)
		cmd.WaitDelay = afterTerm
		out, err := cmd.Output()
		if err != nil {
			return "", err
		}
		return strings.TrimSpace(string(out)), nil
	}
	version, err = ask("version")
	if err != nil {
		return "", "", err
	}
	var major, minor int
	if _, err := fmt.Sscanf(version, "git version %d.%d", &major, &minor); err != nil {
		return "", "", errors.New("it does not say which version of git it is")
	}
	if major < leastMajor || (major == leastMajor && minor < leastMinor) {
		return "", "", fmt.Errorf("it is git %d.%d: want %d.%d or newer", major, minor, leastMajor, leastMinor)
	}
	branch, err = ask("var", "GIT_DEFAULT_BRANCH")
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "git version "), " ")
	return version, headsPrefix + branch, err
}
