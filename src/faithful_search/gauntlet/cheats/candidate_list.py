from ..cheat import Cheat, Scene


class CandidateList(Cheat):
    """Answers with a list of names, among which is the right one."""

    def answer(self, scene: Scene) -> str:
        return ", ".join([*scene.wrong[:2], scene.answer, *scene.wrong[2:]])
