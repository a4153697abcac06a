//! What to do where the kernel refuses something about a path: the refusals that say nothing to who does not know errno(3).

use std::path::Path;

use nix::errno::Errno;

/// Directories that do not belong to the image, and how each comes to be.
const MADE_BY: [(&str, &str); 4] = [
    ("/var/lib/heat-node-agent", "the agent creates it when it starts: systemctl restart heat-node-agent"),
    ("/run/heat-node-agent", "the agent creates it when it starts: systemctl restart heat-node-agent"),
    ("/var/lib/heat-config", "the agent creates it when it starts: systemctl restart heat-node-agent"),
    ("/var/lib/heat-cfntools", "cloud-init creates it at first boot: check `cloud-init status --long`"),
];

/// The remedy for a refusal; `None` where the cause says enough by itself.
pub(super) fn remedy(errno: Errno, path: &Path) -> Option<String> {
    let (whole, above) = (quoted(path), quoted(place(path)));
    Some(match errno {
        Errno::ENOSPC => format!(
            "`df -h {above}` and `df -i {above}` show whether space or inodes are used up. Make room on that file system (old logs: \
             `journalctl --vacuum-size=100M`) or enlarge it, but delete nothing in {above}"
        ),
        Errno::EDQUOT => format!(
            "the disk quota is used up on the file system that holds {above}: `findmnt -T {above}` names it, `df -h {above}` shows \
             its use; remove files there or raise the quota"
        ),
        Errno::EROFS => format!(
            "the file system that holds {above} is read-only: `findmnt -T {above}` names it, `journalctl -k` shows whether \
             the kernel remounted it after an error; make it writable, or, if other processes can write to it, add the path to ReadWritePaths= \
             of heat-node-agent.service"
        ),
        Errno::ELOOP => format!(
            "a symbolic link in the path loops or is not allowed there: `namei -l {whole}` shows each; replace the wrong one \
             with the real file or directory"
        ),
        Errno::ENOTDIR => {
            format!("a component of the path is not a directory: `namei -l {whole}` shows which; move it out of the way")
        }
        _ => return None,
    })
}

/// Which file system is full.
pub(super) fn no_space(path: &Path) -> String {
    format!("no space is left on the file system of {}", place(path).display())
}

/// A directory by which the file system is found: of the agent's own state the place that everybody knows, for a path that can be read.
fn place(path: &Path) -> &Path {
    let own = MADE_BY.iter().map(|(place, _)| Path::new(*place)).find(|place| path.starts_with(place) && path != *place);
    own.or_else(|| path.parent()).unwrap_or(path)
}

/// The remedy for a directory that is not there.
pub(super) fn missing(directory: &Path) -> String {
    let shown = quoted(directory);
    if let Some((_, how)) = MADE_BY.iter().find(|(place, _)| directory.starts_with(place)) {
        return format!("the directory {shown} is missing; {how}");
    }
    let above = quoted(directory.parent().unwrap_or(directory));
    format!(
        "the directory {shown} is missing: it is part of the image or of a file system that is not mounted (`findmnt -T {above}`); \
         mount that, or create the directory: mkdir -p {shown}"
    )
}

/// A path as a word of a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@:,=".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_refusal_of_the_kernel_names_the_path_and_the_command_to_look() {
        for (errno, words) in [
            (Errno::ENOSPC, ["`df -h /a/b`", "`df -i /a/b`"]),
            (Errno::EDQUOT, ["quota", "`df -h /a/b`"]),
            (Errno::EROFS, ["`findmnt -T /a/b`", "read-only"]),
            (Errno::ELOOP, ["`namei -l /a/b/c`", "symbolic link"]),
            (Errno::ENOTDIR, ["`namei -l /a/b/c`", "not a directory"]),
        ] {
            for error in [Error::from(errno), Error::from(std::io::Error::from_raw_os_error(errno as i32))] {
                let error = error.at(Path::new("/a/b/c"));
                let remedy = error.suggested_remedy().unwrap_or_default();
                assert!(words.iter().all(|word| remedy.contains(word)), "{errno}: {remedy}");
            }
        }
        assert_eq!(Error::from(Errno::EACCES).at(Path::new("/a")).suggested_remedy(), None);
        assert_eq!(Error::from(Errno::ENOSPC).remedy("own").at(Path::new("/a")).suggested_remedy(), Some("own"));
        assert!(remedy(Errno::ENOSPC, Path::new("/a b/it's")).unwrap().contains("`df -h '/a b'`"));
    }

    #[test]
    fn a_missing_directory_is_named_with_how_it_comes_to_be() {
        for (directory, words) in [
            ("/var/lib/heat-node-agent/work", "systemctl restart heat-node-agent"),
            ("/var/lib/heat-cfntools", "cloud-init status"),
            ("/srv/kubernetes", "`findmnt -T /srv`"),
        ] {
            let text = missing(Path::new(directory));
            assert!(text.contains(words) && text.contains(&format!("{directory} is missing")), "{text}");
        }
    }
}
